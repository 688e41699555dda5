"""The layout of charts on the page, in a real browser, and in exported files; and the sentences around them."""

import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page

from analysis.report.content import Caution, Chart, Paragraph, ReportContent, ReportTable
from analysis.report.data.report_input import load_report_input
from analysis.report.document import report_of, write_page
from analysis.report.output.charts import write_figures
from tests.analysis.report.test_browser import draw_charts
from tests.support.browser import browser
from tests.support.streaming_runs import StreamingRunPlan, write_streaming_run, write_truth
from tests.support.synthetic_study import write_study

__all__ = ["browser"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    """The report of a study with accuracies, whose charts have one mark for each cell."""
    folder = write_study(tmp_path_factory.mktemp("study") / "study")
    runs = pd.read_csv(folder / "runs.csv")
    runs = runs.assign(mean_iou=0.7, pixel_accuracy=0.9, masks_compared=100, bytes_per_frame=20_000.0)
    runs.to_csv(folder / "runs.csv", index=False)
    return report_of(load_report_input([folder]))


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> ReportContent:
    """The report of a run with its streaming accuracy."""
    folder = tmp_path_factory.mktemp("streaming")
    write_truth(folder / "truth", range(20))
    run = write_streaming_run(folder / "run", StreamingRunPlan(warped={tick: tick for tick in range(2, 20)}))
    return report_of(load_report_input([run], truths=[folder / "truth"]))


def _opened(browser: Browser, report: ReportContent, folder: Path, width: int) -> Page:
    page = browser.new_context(viewport={"width": width, "height": 900}, offline=True).new_page()
    page.goto(write_page(report, [folder], folder / "page.html").as_uri())
    draw_charts(page)
    return page


@pytest.fixture(scope="module", params=[400, 1200])
def page(
    request: pytest.FixtureRequest,
    browser: Browser,
    study: ReportContent,
    streaming: ReportContent,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Page]:
    """A page with all charts of both reports, on a phone and on a screen."""
    both = ReportContent("Both", "Two reports.", (*study.chapters[:3], *streaming.chapters, *study.chapters[3:5]))
    opened = _opened(browser, both, tmp_path_factory.mktemp("page"), request.param)
    yield opened
    opened.context.close()


def test_the_buttons_of_a_chart_lie_above_its_data(page: Page) -> None:
    """Plotly places them over the upper right corner of the data."""
    gaps = page.locator(".chart").evaluate_all(
        """plots => plots.map(plot => plot.getBoundingClientRect().top
            - plot.querySelector(".modebar-group").getBoundingClientRect().bottom)"""
    )
    assert len(gaps) >= 3
    assert min(gaps) >= 0


def test_the_buttons_of_a_chart_cover_no_other_button(page: Page) -> None:
    """The buttons for the scale stand above some charts."""
    overlaps = page.locator("figure:has(.toggles)").evaluate_all(
        """figures => figures.map(figure => figure.querySelector(".modebar-group").getBoundingClientRect().top
            - figure.querySelector(".toggles").getBoundingClientRect().bottom)"""
    )
    assert overlaps
    assert min(overlaps) >= -1


def test_every_text_of_a_chart_is_whole(page: Page) -> None:
    """A long title of an axis was cut at both ends on a phone."""
    cut = page.locator(".chart").evaluate_all(
        """plots => plots.flatMap(plot => {
            const box = plot.getBoundingClientRect();
            return [...plot.querySelectorAll(".main-svg text")].filter(text => {
                const own = text.getBoundingClientRect();
                return own.width && (own.left < box.left - 1 || own.right > box.right + 1
                    || own.top < box.top - 1 || own.bottom > box.bottom + 1);
            }).map(text => `${plot.id}: ${text.textContent}`);
        })"""
    )
    assert cut == []
    assert "the frames with a result" in " ".join(page.locator(".xtitle").all_text_contents())


def test_exported_charts_name_their_cells(browser: Browser, study: ReportContent, tmp_path: Path) -> None:
    """A figure in a paper has no pointer that shows the name of a mark; each is written as SVG and as PNG."""
    assert browser.is_connected()
    wanted = {"cells_bytes", "accuracy_latency"}
    written = write_figures([chart for chart in study.charts() if chart.name in wanted], tmp_path)
    assert {path.name for path in written} == {f"{name}.{suffix}" for name in wanted for suffix in ("png", "svg")}
    for name in wanted:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        drawn = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert "1 frozen_graph · 1 vehicle" in drawn
        assert "3 saved_model · 1 vehicle" in drawn


def test_every_sentence_begins_with_a_capital(study: ReportContent, streaming: ReportContent) -> None:
    """Paragraphs, cautions and captions, also those that begin with the name of a metric, a stage or a cell."""
    texts = [
        part.text if isinstance(part, Paragraph | Caution) else part.caption
        for report in (study, streaming)
        for chapter in report.chapters
        for part in chapter.parts
        if isinstance(part, Paragraph | Caution | Chart | ReportTable)
    ]
    sentences = [sentence for text in texts for sentence in re.split(r"(?<=[.!?])\s+", text) if sentence]
    assert [sentence for sentence in sentences if sentence[0].islower()] == []
