"""The page of the HTTP doors, in a real browser."""

from pathlib import Path

import urllib3
from playwright.sync_api import Browser

from cloud.gateway.settings import GatewaySettings
from tests.bench.report.test_browser import browser
from tests.support.gateway import open_gateway
from tests.support.tiny_model import model

__all__ = ["browser"]


def test_the_page_shows_every_door_and_asks_no_other_server(browser: Browser) -> None:
    """A worker often stands where there is no internet, and a page that calls elsewhere tells who looks at it."""
    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0")) as doors, browser.new_context() as context:
        page = context.new_page()
        asked: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(f"http://{doors.http}/docs")
        page.wait_for_selector(".opblock")
        shown = page.inner_text("body")
    assert "/v2/models/{model}/infer" in shown
    assert "/v1/models/{model}" in shown
    assert {url.split("/")[2] for url in asked if not url.startswith("data:")} == {doors.http}
    assert not wrong


def test_where_there_are_tokens_the_page_asks_for_one(tmp_path: Path) -> None:
    """Else nothing could be tried out on it."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"* {'t' * 32}\n", encoding="utf-8")
    with open_gateway(model(), gateway=GatewaySettings(http="127.0.0.1:0", tokens=tokens)) as doors:
        told = urllib3.request("GET", f"http://{doors.http}/openapi.json").json()
    assert told["components"]["securitySchemes"] == {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
    assert told["paths"]["/api/detect"]["post"]["security"] == [{"HTTPBearer": []}]
