"""The page in a real browser, offline, as its reader meets it."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from bench.report.data.report_input import open_subject
from bench.report.document import report_of, write_report
from bench.report.output.charts import find_browser, write_figures
from tests.support.synthetic_study import write_study

REQUIRED = os.environ.get("SKYLANE_REQUIRE_BROWSER") == "1"  # Set by .ci/run: there a skip is a failure.
MISSING = "no Chrome or Chromium here: apt-get install chromium"
WIDTH, HEIGHT = 1280, 900


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium that reaches nothing."""
    executable = find_browser()
    if executable is None:
        if REQUIRED:
            pytest.fail(f"{MISSING} (SKYLANE_REQUIRE_BROWSER=1)")
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox; software draws WebGL where there is no graphics card.
        arguments = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        running = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield running
        running.close()


@dataclass
class Visit:
    """A page that was opened, and what it complained of or asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def opened(browser: Browser, path: Path) -> Visit:
    """A page, with every figure drawn."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, offline=True)
    visit = Visit(context.new_page())
    visit.page.on("console", lambda said: visit.complaints.append(said.text) if said.type == "error" else None)
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    visit.page.on("request", lambda request: visit.requests.append(request.url))
    visit.page.goto(path.as_uri())
    scrolled(visit.page)
    return visit


def scrolled(page: Page) -> None:
    """Scroll through the page, which draws its figures. A script of ours would be free of the page's own policy."""
    charts = page.locator(".chart")
    for place in range(charts.count()):
        charts.nth(place).scroll_into_view_if_needed()
        charts.nth(place).locator(".main-svg").first.wait_for(state="attached")


@pytest.fixture(scope="module")
def visit(browser: Browser, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """The report of the run, opened."""
    made = opened(browser, write_report([run], tmp_path_factory.mktemp("page") / "report.html", price_per_hour=1.25))
    yield made
    made.page.context.close()


def is_sound(visit: Visit) -> None:
    """Nothing was complained of, nothing was asked for, everything is drawn and nothing sticks out."""
    assert not visit.complaints
    allowed = re.compile(r"(file|data|blob):")
    assert [url for url in visit.requests if not allowed.match(url)] == []
    assert sum(url.startswith("file:") for url in visit.requests) == 1
    charts = visit.page.locator(".chart")
    assert charts.count() >= 3
    assert all(charts.nth(place).locator(".main-svg").count() for place in range(charts.count()))
    assert not visit.page.locator(".no-webgl").count()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= WIDTH


def test_the_page_opens_offline_whole_and_without_complaint(visit: Visit) -> None:
    """Every figure is drawn; nothing was asked for but the file."""
    is_sound(visit)


def test_a_comparison_and_a_study_open_likewise(browser: Browser, run: Path, slower: Path, tmp_path: Path) -> None:
    """They have figures of their own."""
    for folders in ([run, slower], [write_study(tmp_path / "study")]):
        other = opened(browser, write_report(folders, tmp_path / "page.html"))
        is_sound(other)
        other.page.context.close()


def test_without_webgl_points_are_drawn_as_vectors(browser: Browser, run: Path, tmp_path: Path) -> None:
    """Many a virtual machine has none: the run over time must not be an empty box there."""
    path = write_report([run], tmp_path / "page.html")
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, offline=True)
    context.add_init_script(
        "const get = HTMLCanvasElement.prototype.getContext; HTMLCanvasElement.prototype.getContext ="
        " function (kind, ...rest) { return /webgl/.test(kind) ? null : get.call(this, kind, ...rest); }"
    )
    page = context.new_page()
    page.goto(path.as_uri())
    scrolled(page)
    points = page.locator("#plot-timeline .scatterlayer .point")
    points.first.wait_for(state="attached")
    assert points.count() >= 400
    assert not page.locator(".no-webgl").count()
    context.close()


def test_the_contents_lead_to_every_chapter(visit: Visit) -> None:
    """And say where the reader is."""
    links = visit.page.locator("nav a")
    assert links.count() == visit.page.locator("section").count() >= 10
    for place in range(links.count()):
        links.nth(place).click()
        anchor = links.nth(place).get_attribute("href") or ""
        visit.page.wait_for_function(
            "anchor => { const top = document.querySelector(anchor).getBoundingClientRect().top;"
            " return top < 200 || innerHeight + scrollY >= document.documentElement.scrollHeight - 2; }",
            arg=anchor,
        )
    assert visit.page.locator("nav a[aria-current]").count() == 1


def slowest_point(page: Page) -> tuple[float, float, int]:
    """Where on the screen the slowest frame's point is, and the frame's number."""
    page.locator("#plot-timeline").scroll_into_view_if_needed()
    x, y, sequence = page.evaluate(
        """() => {
            const plot = document.getElementById("plot-timeline"), layout = plot._fullLayout;
            const slow = plot.data.find((trace) => trace.name.endsWith("slowest"));
            const box = plot.getBoundingClientRect();
            const data = plot._fullData.find((trace) => trace.name === slow.name);
            return [box.left + layout.xaxis._offset + layout.xaxis.d2p(data.x[0]),
                    box.top + layout.yaxis._offset + layout.yaxis.d2p(data.y[0]), data.customdata[0]];
        }"""
    )
    return float(x), float(y), int(sequence)


def test_pointing_at_an_outlier_names_its_frame(visit: Visit) -> None:
    """The id leads from the picture to the row."""
    x, y, sequence = slowest_point(visit.page)
    visit.page.mouse.move(x - 3, y - 3)
    visit.page.mouse.move(x, y)
    hover = visit.page.locator("#plot-timeline .hoverlayer .hovertext")
    hover.first.wait_for()
    assert f"#{sequence}" in (hover.first.text_content() or "")


def test_clicking_an_outlier_opens_its_frame(visit: Visit) -> None:
    """Every stage of it, against the median."""
    x, y, sequence = slowest_point(visit.page)
    visit.page.mouse.move(x, y)
    visit.page.mouse.click(x, y)
    panel = visit.page.locator("#frame")
    panel.wait_for(state="visible")
    assert (panel.locator("h3").text_content() or "").endswith(f"#{sequence}")
    assert panel.locator("tbody tr").count() == 14
    assert "inferred" in (panel.text_content() or "")
    visit.page.keyboard.press("Escape")
    panel.wait_for(state="hidden")


def test_a_frame_is_opened_and_closed_by_the_keyboard(visit: Visit) -> None:
    """Not everyone has a mouse; and the focus comes back to where it was."""
    button = visit.page.locator("[data-frame]").first
    button.focus()
    visit.page.keyboard.press("Enter")
    panel = visit.page.locator("#frame")
    panel.wait_for(state="visible")
    assert visit.page.evaluate("document.activeElement.id") == "frame"
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    panel.wait_for(state="hidden")
    assert visit.page.evaluate("document.activeElement.dataset.frame") == button.get_attribute("data-frame")


def test_a_frame_whose_overlay_was_kept_shows_it(visit: Visit, run: Path) -> None:
    """What delayed it may be in the picture."""
    kept = visit.page.evaluate("Object.keys(JSON.parse(document.getElementById('frames').textContent).pictures)")
    assert len(list((run / "overlays").iterdir())) >= len(kept) > 0
    visit.page.evaluate("number => document.querySelector('[data-frame]').dataset.frame = number", kept[0])
    visit.page.locator("[data-frame]").first.click()
    picture = visit.page.locator("#frame img")
    picture.wait_for()
    visit.page.wait_for_function("document.querySelector('#frame img').naturalWidth > 0")
    visit.page.keyboard.press("Escape")


def test_the_tail_is_shown_at_the_press_of_a_button(visit: Visit) -> None:
    """The few slow frames are what a linear axis hides."""
    kind = "document.getElementById('plot-cumulative')._fullLayout.yaxis.type"
    tail = visit.page.locator("[data-chart=cumulative][data-toggle='1']")
    tail.click()
    assert visit.page.evaluate(kind) == "log"
    assert tail.get_attribute("aria-pressed") == "true"
    visit.page.locator("[data-chart=cumulative][data-toggle='0']").click()
    assert visit.page.evaluate(kind) == "linear"


def test_the_page_can_be_printed(visit: Visit) -> None:
    """Figures and tables fit between the margins of A4; what only works on a screen is left out."""
    visit.page.emulate_media(media="print")
    visit.page.set_viewport_size({"width": 690, "height": 970})
    visit.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert not visit.page.locator("nav").is_visible()
    assert visit.page.locator("#table-manifest").is_visible()
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 710
    visit.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    visit.page.emulate_media(media="screen")
    visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    assert visit.page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_figures_are_drawn_as_files(browser: Browser, run: Path, tmp_path: Path) -> None:
    """For papers: each as SVG and as PNG."""
    assert browser.is_connected()
    charts = [chart for chart in report_of(open_subject([run])).charts() if chart.name in {"waterfall", "timeline"}]
    written = write_figures(charts, tmp_path)
    assert sorted(path.name for path in written) == ["timeline.png", "timeline.svg", "waterfall.png", "waterfall.svg"]
    assert (tmp_path / "waterfall.png").read_bytes().startswith(b"\x89PNG")
    assert "inferred" in (tmp_path / "waterfall.svg").read_text(encoding="utf-8")


def test_a_browser_is_found_by_any_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributions call it differently."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_browser() is None
    named = tmp_path / "google-chrome"
    named.write_text("#!/bin/sh\n")
    named.chmod(0o755)
    assert find_browser() == str(named) == shutil.which("google-chrome")


def test_a_phone_shows_captions_and_figures_whole(browser: Browser, run: Path, tmp_path: Path) -> None:
    """A table is swiped sideways; its caption used to be cut off with it."""
    page = opened(browser, write_report([run], tmp_path / "page.html")).page
    page.set_viewport_size({"width": 390, "height": 844})
    scrolled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    widths = page.locator("caption span, .main-svg").evaluate_all(
        "parts => parts.filter(part => part.checkVisibility()).map(part => part.getBoundingClientRect().width)"
    )
    assert widths
    assert max(widths) <= 390
