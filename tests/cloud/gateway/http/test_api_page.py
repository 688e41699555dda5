"""The page at /docs, in a real browser."""

from playwright.sync_api import Browser

from tests.support.browser import browser
from tests.support.gateway import open_gateway
from tests.support.tiny_model import model

__all__ = ["browser"]


def test_the_page_shows_the_routes_and_contacts_no_other_server(browser: Browser) -> None:
    """Workers may run without internet access, and a page that loads from elsewhere reveals its visitors."""
    with open_gateway(model(), http="127.0.0.1:0") as worker, browser.new_context() as context:
        page = context.new_page()
        urls: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"http://{worker.http}/docs")
        page.wait_for_selector(".opblock")
        shown = page.inner_text("body")
    assert "/v2/models/{model}/infer" in shown
    assert "/v1/models/{model}" in shown
    assert {url.split("/")[2] for url in urls if not url.startswith("data:")} == {worker.http}
    assert not errors
