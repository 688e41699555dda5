"""Tests of the HTML report in a real browser without network."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from analysis.report.chapters.comparisons.cost import Tariff
from analysis.report.content import ReportContent
from analysis.report.document import write_page, write_report
from tests.support.browser import browser

__all__ = ["browser"]

WIDTH, HEIGHT = 1280, 900
WAIT_MS = 120_000  # A busy machine draws slowly.


@dataclass
class Visit:
    """An opened page with its console errors and requests."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def open_page(browser: Browser, path: Path) -> Visit:
    """Opens a page and draws every chart."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, offline=True)
    context.set_default_timeout(WAIT_MS)
    visit = Visit(context.new_page())
    visit.page.on("console", lambda message: visit.errors.append(message.text) if message.type == "error" else None)
    visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
    visit.page.on("request", lambda request: visit.requests.append(request.url))
    visit.page.goto(path.as_uri())
    draw_charts(visit.page)
    return visit


def draw_charts(page: Page) -> None:
    """Scrolls to every chart, which draws it; an injected script would bypass the page's content security policy."""
    charts = page.locator(".chart")
    for index in range(charts.count()):
        charts.nth(index).scroll_into_view_if_needed()
        charts.nth(index).locator(".main-svg").first.wait_for(state="attached")


@pytest.fixture(scope="module")
def visit(browser: Browser, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """The opened report of the run."""
    path = write_report([run], tmp_path_factory.mktemp("page") / "report.html", Tariff(1.25))
    visit = open_page(browser, path)
    yield visit
    visit.page.context.close()


def assert_complete(visit: Visit) -> None:
    """Checks that the page has no errors, loads only its own file, draws every chart and fits the window."""
    assert not visit.errors
    allowed = re.compile(r"(file|data|blob):")
    assert [url for url in visit.requests if not allowed.match(url)] == []
    assert sum(url.startswith("file:") for url in visit.requests) == 1
    charts = visit.page.locator(".chart")
    assert charts.count() >= 3
    assert all(charts.nth(index).locator(".main-svg").count() for index in range(charts.count()))
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= WIDTH


def test_the_page_of_a_run_is_complete_without_network(visit: Visit) -> None:
    """The page draws every chart and loads nothing but its own file."""
    assert_complete(visit)


def test_the_pages_of_a_comparison_and_a_study_are_complete(
    browser: Browser, comparison: ReportContent, study_report: ReportContent, tmp_path: Path
) -> None:
    """These pages have charts that the page of a run does not have."""
    for content in (comparison, study_report):
        other = open_page(browser, write_page(content, [tmp_path], tmp_path / "page.html"))
        assert_complete(other)
        other.page.context.close()


def test_the_contents_link_to_every_chapter(visit: Visit) -> None:
    """The link of the current chapter is highlighted."""
    links = visit.page.locator("nav a")
    assert links.count() == visit.page.locator("section").count() >= 10
    for index in range(links.count()):
        links.nth(index).click()
        anchor = links.nth(index).get_attribute("href") or ""
        visit.page.wait_for_function(
            "anchor => { const top = document.querySelector(anchor).getBoundingClientRect().top;"
            " return top < 200 || innerHeight + scrollY >= document.documentElement.scrollHeight - 2; }",
            arg=anchor,
        )
    assert visit.page.locator("nav a[aria-current]").count() == 1


def slowest_point(page: Page) -> tuple[float, float, int]:
    """Returns the screen position of the slowest frame's point, and its sequence number."""
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


def test_clicking_a_frame_opens_its_details(visit: Visit) -> None:
    """The pointer shows the sequence number of the frame, and the panel every stage beside its median."""
    x, y, sequence = slowest_point(visit.page)
    visit.page.mouse.move(x - 3, y - 3)
    visit.page.mouse.move(x, y)
    hover = visit.page.locator("#plot-timeline .hoverlayer .hovertext")
    hover.first.wait_for()
    assert f"#{sequence}" in (hover.first.text_content() or "")
    visit.page.mouse.click(x, y)
    panel = visit.page.locator("#frame")
    panel.wait_for(state="visible")
    assert (panel.locator("h3").text_content() or "").endswith(f"#{sequence}")
    assert panel.locator("tbody tr").count() == 14
    assert "inferred" in (panel.text_content() or "")
    visit.page.keyboard.press("Escape")
    panel.wait_for(state="hidden")


def test_the_details_of_a_reused_frame_name_the_frame_whose_result_it_got(
    browser: Browser, gated_report: ReportContent, tmp_path: Path
) -> None:
    """A reader follows a wrong result to its source; the page has charts that others do not have."""
    opened = open_page(browser, write_page(gated_report, [tmp_path], tmp_path / "page.html"))
    assert_complete(opened)
    sequence, source = opened.page.evaluate(
        """() => {
            const { columns } = JSON.parse(document.getElementById("frames").textContent);
            const row = columns.outcome.indexOf("reused");
            return [columns.sequence[row], columns.reused_sequence[row]];
        }"""
    )
    opened.page.locator("[data-frame]").first.evaluate("(button, number) => button.dataset.frame = number", sequence)
    opened.page.locator("[data-frame]").first.click()
    panel = opened.page.locator("#frame")
    panel.wait_for(state="visible")
    shown = panel.inner_text()
    assert f"has the result of #{source}" in shown
    assert "from the frame whose result could be reused" in shown
    assert not opened.errors
    opened.page.context.close()


def test_a_frame_is_opened_and_closed_with_the_keyboard(visit: Visit) -> None:
    """After closing, the focus returns to the button that opened the frame."""
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


def test_a_frame_with_an_overlay_image_shows_it(visit: Visit, run: Path) -> None:
    """The page contains images of some frames of the run."""
    sequences = visit.page.evaluate("Object.keys(JSON.parse(document.getElementById('frames').textContent).images)")
    assert len(list((run / "overlays").iterdir())) >= len(sequences) > 0
    visit.page.evaluate("number => document.querySelector('[data-frame]').dataset.frame = number", sequences[0])
    visit.page.locator("[data-frame]").first.click()
    visit.page.locator("#frame img").wait_for()
    visit.page.wait_for_function("() => document.querySelector('#frame img').naturalWidth > 0")
    visit.page.keyboard.press("Escape")


def test_a_button_switches_the_distribution_to_its_tail(visit: Visit) -> None:
    """A linear axis hides the few slow frames."""
    axis_type = "document.getElementById('plot-cumulative')._fullLayout.yaxis.type"
    tail = visit.page.locator("[data-chart=cumulative][data-toggle='1']")
    tail.click()
    assert visit.page.evaluate(axis_type) == "log"
    assert tail.get_attribute("aria-pressed") == "true"
    visit.page.locator("[data-chart=cumulative][data-toggle='0']").click()
    assert visit.page.evaluate(axis_type) == "linear"


def test_the_data_of_a_figure_are_downloaded_as_csv(visit: Visit, report: ReportContent) -> None:
    """Each figure has a number and a link to its data."""
    captions = visit.page.locator("figure:has(.chart) figcaption").all_inner_texts()
    assert [caption.split(".")[0] for caption in captions] == [
        f"Figure {number}" for number in range(1, len(captions) + 1)
    ]
    assert visit.page.locator("[data-csv]").count() == len(captions) == visit.page.locator(".chart").count()
    with visit.page.expect_download() as download:
        visit.page.locator("[data-csv=waterfall]").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    chart = next(chart for chart in report.charts() if chart.name == "waterfall")
    assert [row["series"] for row in rows] == [trace["name"] for trace in chart.traces]
    durations = [float(row["time since the frame was due, ms"]) for row in rows]
    assert durations == pytest.approx([trace["x"][0] for trace in chart.traces])


def test_a_click_on_the_legend_hides_a_series(visit: Visit) -> None:
    """The legend stands below the chart as text, which wraps on a narrow screen."""
    stage = visit.page.locator("#figure-shares .legend button", has_text="inferred")
    shown = (
        "document.getElementById('plot-shares').data.find(trace => trace.name === 'inferred').visible !== 'legendonly'"
    )
    stage.click()
    assert stage.get_attribute("aria-pressed") == "false"
    assert not visit.page.evaluate(shown)
    stage.click()
    assert visit.page.evaluate(shown)


def test_a_link_opens_a_collapsed_chapter(visit: Visit) -> None:
    """The setup is collapsed at the end of the page."""
    setup = visit.page.locator("#provenance > details")
    visit.page.evaluate("document.querySelector('#provenance > details').open = false")
    visit.page.locator("nav a[href='#outcomes']").click()
    assert setup.get_attribute("open") is None
    visit.page.locator("nav a[href='#provenance']").click()
    visit.page.locator("#table-manifest").wait_for(state="visible")


def test_charts_follow_the_colour_scheme_of_the_browser(visit: Visit) -> None:
    """A white chart on a dark page would be hard to read."""
    background = (
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('#plot-waterfall .main-svg')).backgroundColor]"
    )
    visit.page.emulate_media(color_scheme="dark")
    visit.page.wait_for_function(f"() => new Set({background}).size === 1 && {background}[0] === 'rgb(13, 17, 23)'")
    visit.page.emulate_media(color_scheme="light")
    visit.page.wait_for_function(f"() => new Set({background}).size === 1 && {background}[0] === 'rgb(255, 255, 255)'")


def test_the_buttons_of_a_chart_appear_when_it_is_pointed_at(visit: Visit) -> None:
    """They would otherwise cover data."""
    bar = visit.page.locator("#plot-waterfall .modebar-group").first
    visit.page.mouse.move(0, 0)
    visit.page.wait_for_function(
        "() => getComputedStyle(document.querySelector('#plot-waterfall .modebar-group')).opacity === '0'"
    )
    visit.page.locator("#plot-waterfall").hover()
    visit.page.wait_for_function(
        "() => getComputedStyle(document.querySelector('#plot-waterfall .modebar-group')).opacity !== '0'"
    )
    assert bar.is_visible()


def test_the_page_can_be_printed(visit: Visit) -> None:
    """Charts and tables fit the width of an A4 page, and interactive elements are hidden."""
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


def test_captions_and_charts_fit_the_screen_of_a_phone(visit: Visit) -> None:
    """Wide tables scroll sideways; their captions were once cut off."""
    page = visit.page
    page.set_viewport_size({"width": 390, "height": 844})
    draw_charts(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    widths = page.locator("caption span, .main-svg").evaluate_all(
        "parts => parts.filter(part => part.checkVisibility()).map(part => part.getBoundingClientRect().width)"
    )
    assert widths
    assert max(widths) <= 390
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
