import json
import re
from pathlib import Path

import numpy as np
import pytest

from analysis.logs.run_log import load_run
from analysis.report.chapters.comparisons.cost import Tariff
from analysis.report.chapters.run.load import frames_in_system, mean_queue_depth, queue_depth
from analysis.report.content import Caution, Chapter, Chart, Paragraph, ReportContent, ReportTable
from analysis.report.data.report_input import ReportInputError, load_report_input
from analysis.report.document import ReportError, report_of, write_page, write_report
from analysis.report.output.number_format import text
from analysis.report.output.page import render
from analysis.report.results import terminal_tables
from shared.runlog.latency_log import LogError
from shared.runlog.percentiles import NOTE
from tests.support import run_damage
from tests.support.synthetic_run import SyntheticRunPlan, write_run
from tests.support.synthetic_study import write_study

MAX_PAGE_BYTES = 5_000_000
MAX_DEMO_PAGE_BYTES = 2_500_000  # Of a run of 60 frames with overlays.


def chapter_of(report: ReportContent, anchor: str) -> Chapter:
    """Returns a chapter by its anchor."""
    (found,) = (chapter for chapter in report.chapters if chapter.anchor == anchor)
    return found


def text_of(chapter: Chapter) -> str:
    """Returns all paragraphs of a chapter."""
    return " ".join(part.text for part in chapter.parts if isinstance(part, Paragraph | Caution))


def report_on(*folders: Path) -> ReportContent:
    """Returns the report of some folders."""
    return report_of(load_report_input(folders))


def test_the_summary_has_outcomes_and_the_longest_stage(report: ReportContent) -> None:
    """The summary alone must give a correct impression of the run."""
    assert re.fullmatch(
        r"39\d of 400 frames were answered \(\d+ dropped and \d+ lost\)\. "
        r"\d\d % of their time was spent in the stage inferred, in which the frame is processed by the model\.",
        report.summary,
    )


def test_the_chapters_of_a_run_have_a_fixed_order(report: ReportContent) -> None:
    """Results come first; the consistency of the log and the setup are collapsed at the end."""
    anchors = [chapter.anchor for chapter in report.chapters]
    assert anchors == [
        "stages", "outcomes", "distribution", "timeline", "load", "throughput", "clocks", "resources", "statistics",
        "consistency", "provenance",
    ]  # fmt: skip
    assert [chapter.anchor for chapter in report.chapters if chapter.is_collapsed] == anchors[-2:]


def test_the_key_figures_stand_at_the_top(report: ReportContent) -> None:
    """A reader finds the share of answered frames, the percentiles and the throughput without scrolling."""
    values = {figure.label: figure.value for figure in report.key_figures}
    assert list(values) == ["answered", "median latency (p50)", "95th percentile (p95)", "frames per second"]
    assert values["answered"] == "98 %"
    total = next(row for table in report.tables() if table.name == "stages" for row in table.rows if row[0] == "total")
    assert values["median latency (p50)"] == f"{total[2]:.0f} ms"
    assert report.picture is not None
    assert report.picture.url.startswith("data:image/jpeg;base64,")


def test_cautions_of_collapsed_chapters_stand_at_the_top(tmp_path: Path) -> None:
    """A reader must not miss that a run is incomplete or that its log is inconsistent."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=30))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"state": "running"}))
    page = write_report([folder], tmp_path / "page.html").read_text()
    header = page[page.index("<header>") : page.index("</header>")]
    assert "The state of this run is not complete but running" in header


def test_chart_and_table_name_the_same_stages(report: ReportContent) -> None:
    """A reader looks up a bar of the chart in the table below it."""
    waterfall, shares = (
        next(chart for chart in report.charts() if chart.name == name) for name in ("waterfall", "shares")
    )
    table = next(table for table in report.tables() if table.name == "stages")
    names = [str(row[0]) for row in table.rows]
    assert [trace["name"] for trace in waterfall.traces] == [trace["name"] for trace in shares.traces] == names[:-1]


def test_queue_depths_and_loads_follow_from_the_stage_durations() -> None:
    """Three frames are due 10 ms apart; each waits 15 ms and takes 25 ms."""
    begin = np.array([0.0, 0.010, 0.020])
    times, depth = queue_depth(begin, begin + 0.015)
    np.testing.assert_allclose(times, [0, 0.010, 0.015, 0.020, 0.025, 0.035])
    assert depth.tolist() == [1, 2, 1, 2, 1, 0]
    mean = mean_queue_depth(begin, begin + 0.015, np.array([0.0, 0.010, 0.020, 0.040]))
    np.testing.assert_allclose(mean, [1.0, 1.5, 1.0])  # 10, 15 and 20 ms of waiting.
    assert frames_in_system(begin, begin + 0.025).tolist() == [0, 1, 2]


@pytest.fixture
def reports(
    report: ReportContent, gated_report: ReportContent, comparison: ReportContent, study_report: ReportContent
) -> tuple[ReportContent, ...]:
    """One report of each kind."""
    return report, gated_report, comparison, study_report


def test_every_axis_has_a_unit(reports: tuple[ReportContent, ...]) -> None:
    """The values of an axis without unit cannot be read."""
    charts = [chart for report in reports for chart in report.charts()]
    assert len(charts) > 20
    for chart in charts:
        measured = [axis for name, axis in chart.layout.items() if name == "xaxis"]
        assert measured, chart.name
        assert re.search(
            r", (ms|s|%|MB|MB/s|W)(\b|$| )|frames|Mbit/s|one core|grey levels²|0 to 1", measured[0]["title"]["text"]
        ), chart.name
        vertical = chart.layout["yaxis"].get("title", {}).get("text")
        is_named = chart.layout["yaxis"].get("visible") is False or "autorange" in chart.layout["yaxis"]
        assert vertical or is_named, chart.name


def test_every_caption_describes_its_chart_with_numbers(report: ReportContent) -> None:
    """Readers who cannot see the chart need its main values."""
    for chart in report.charts():
        assert re.search(r"\d", chart.caption), chart.name
        assert len(chart.caption) > 40, chart.name


def test_names_of_tables_and_charts_are_unique_file_names(reports: tuple[ReportContent, ...]) -> None:
    """Two tables with the same name would overwrite each other."""
    for made in reports:
        for names in ([table.name for table in made.tables()], [chart.name for chart in made.charts()]):
            assert len(set(names)) == len(names)
            assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)


def test_the_same_log_gives_the_same_report(run: Path, report: ReportContent) -> None:
    """The seed of the confidence intervals is fixed."""
    assert render(report_on(run)) == render(report)


def test_names_in_a_log_are_escaped(tmp_path: Path) -> None:
    """A worker or model can have any name, including HTML."""
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=30))
    for path in (folder / "latency.csv", folder / "manifest.json", folder / "latency.journal"):
        text = path.read_text(encoding="utf-8").replace("worker-1", hostile).replace("road-small", hostile)
        path.write_text(text, encoding="utf-8")
    page = render(report_on(folder))
    assert hostile not in page
    assert "<img src=x" not in page


def test_a_page_that_cannot_be_written_is_an_error(report: ReportContent, tmp_path: Path) -> None:
    """The message suggests another --out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="choose another --out"):
        write_page(report, [tmp_path], tmp_path / "file" / "report.html")


def test_a_run_without_answers_is_reported_without_latency(tmp_path: Path) -> None:
    """The report shows outcomes and resources and no latency charts."""
    made = report_on(write_run(tmp_path / "run", SyntheticRunPlan(frames=40, unanswered=1.0)))
    assert made.summary.startswith("None of 40 frames was answered (")
    for anchor in ("stages", "distribution", "timeline", "throughput", "clocks", "statistics"):
        assert text_of(chapter_of(made, anchor)).startswith("Not measured: no"), anchor
    assert [chart.name for chart in made.charts() if not chart.name.startswith("resources")] == ["outcomes"]
    assert render(made)


@pytest.mark.parametrize("change", [{"inferred_ms": "soon"}, {"t_inferred_ns": "1000"}])
def test_the_readable_part_of_a_damaged_log_is_reported(tmp_path: Path, change: dict[str, str]) -> None:
    """The problems are listed with file and row, and nothing is estimated."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=60, unanswered=0.0))
    run_damage.change(folder, 5, **change)
    made = report_on(folder)
    assert "never estimated" in text_of(chapter_of(made, "consistency"))
    (problems,) = (table for table in made.tables() if table.name == "problems")
    assert any("latency.csv" in str(row[0]) for row in problems.rows)
    assert re.match(r"(59|60) of (59|60) frames were answered", made.summary)


def test_latency_statistics_mention_the_unanswered_frames(tmp_path: Path) -> None:
    """A stalled worker causes unanswered frames, which the percentiles of the answered ones do not show."""
    made = report_on(write_run(tmp_path / "stalled", SyntheticRunPlan(frames=200, unanswered=0.5)))
    for anchor in ("distribution", "statistics"):
        captions = [part.caption for part in chapter_of(made, anchor).parts if isinstance(part, Chart | ReportTable)]
        assert any(
            re.search(r"The other \d+ of 200 frames \(\d\d %\) got no result in time", text) for text in captions
        )
    several = report_on(tmp_path / "stalled", tmp_path / "stalled")
    (totals,) = (table for table in several.tables() if table.name == "totals")
    assert [column.heading for column in totals.columns[:3]] == ["run", "frames", "with a result %"]
    assert 30 < float(str(totals.rows[0][2])) < 70
    assert several.summary.startswith("Median latency of the frames with a result: ")


def test_few_frames_have_no_high_percentiles(tmp_path: Path) -> None:
    """The slowest 5 % of 15 frames are less than one frame."""
    made = report_on(write_run(tmp_path / "run", SyntheticRunPlan(frames=15, unanswered=0.0)))
    (statistics,) = (table for table in made.tables() if table.name == "statistics")
    assert NOTE in statistics.caption
    headings = [column.heading for column in statistics.columns]
    for row in statistics.rows:
        for heading in ("p99", "p99.9"):
            assert text(row[headings.index(heading)]) == "–"
    (histogram,) = (chart for chart in made.charts() if chart.name == "histogram")
    assert not any("p99" in mark["text"] for mark in histogram.layout["annotations"])
    (cumulative,) = (chart for chart in made.charts() if chart.name == "cumulative")
    assert "99 %" not in cumulative.caption


def test_the_final_sample_does_not_appear_as_a_pause_of_the_traffic(tmp_path: Path) -> None:
    """A run ends with a sample a few milliseconds after the previous one, with no traffic in between."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=60))
    path = folder / "resources.csv"
    last = [line for line in path.read_text(encoding="utf-8").splitlines() if ",broker," in line][-1]
    at_ns, rest = last.split(",", 1)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{int(at_ns) + 5_000_000},{rest}\n")
    (traffic,) = (chart for chart in report_on(folder).charts() if chart.name == "resources_traffic")
    assert all(min(trace["y"]) > 0 for trace in traffic.traces)


def test_missing_resources_and_manifest_are_mentioned(tmp_path: Path) -> None:
    """An empty chapter would look like a run that used no resources; a run of one frame has no intervals."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=1, unanswered=0.0))
    (folder / "resources.csv").unlink()
    (folder / "manifest.json").unlink()
    made = report_on(folder)
    assert made.summary.startswith("1 of 1 frames were answered")
    assert text_of(chapter_of(made, "resources")) == "Not measured: the run has no resources.csv."
    assert "are unknown" in text_of(chapter_of(made, "provenance"))
    assert render(made)


@pytest.mark.parametrize(
    ("change", "caution"),
    [
        ({"model": {"trained": False}}, "The weights of this model are random"),
        ({"answered_by": [{"sha256": "a"}, {"sha256": "b"}]}, "Different models with the same name"),
        ({"answered_by": [{"sha256": "a"}, {"sha256": "a"}]}, ""),
    ],
)
def test_a_doubtful_model_is_mentioned(tmp_path: Path, change: dict[str, object], caution: str) -> None:
    """Results of random weights are meaningless; the columns of the log cannot show a model that was trained again."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=30))
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    found = text_of(chapter_of(report_on(folder), "provenance"))
    assert found.startswith(caution) if caution else not found


def test_workers_with_several_versions_of_the_model_are_mentioned(tmp_path: Path) -> None:
    """Workers of one group can serve different versions under the same model name."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=30, unanswered=0))
    run_damage.change(folder, run_damage.line_of(folder, "answered"), model_version="2", engine="openvino bf16")
    found = chapter_of(report_on(folder), "provenance")
    (table,) = (part for part in found.parts if isinstance(part, ReportTable))
    expected = "worker-1 (version 1, tensorflow fp32): 29 frames; worker-1 (version 2, openvino bf16): 1 frames"
    assert table.rows[0] == ("answered by", expected)
    assert "Several versions of the model answered" in text_of(found)
    path = folder / "manifest.json"
    one_file = {"answered_by": [{"model_version": version, "sha256": "a"} for version in "12"]}
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | one_file), encoding="utf-8")
    assert "Several versions" not in text_of(chapter_of(report_on(folder), "provenance"))  # One file is one model.


def test_two_runs_are_compared_without_a_p_value(run: Path, slower: Path, comparison: ReportContent) -> None:
    """Hundreds of frames are still only one run of each; sentence and table have the same verdict."""
    made = comparison
    sentence = text_of(chapter_of(made, "comparison"))
    verdict = "too few runs for a test (n = 1 and 1)"
    assert re.search(r"The median of slower was [\d.]+ ms higher than that of first in these runs", sentence)
    assert verdict in sentence
    (table,) = (table for table in made.tables() if table.name == "comparison")
    assert table.rows[0][-2:] == (verdict, "–")
    page = re.sub(r"<script.*?</script>", "", render(made), flags=re.DOTALL)
    assert not re.search(r"p\s*[=<]\s*0\.\d", page)
    shown = [str(part) for part in terminal_tables(load_report_input([run, slower]), made) if isinstance(part, str)]
    assert shown == [sentence]


def test_cost_and_offloading_are_reported_on_request(tmp_path: Path) -> None:
    """A price and a local run add a chapter each."""
    local = write_run(tmp_path / "local", SyntheticRunPlan(frames=40))
    slower = write_run(tmp_path / "slower", SyntheticRunPlan(frames=40, seed=1, session="50e551014ab1", slower_ms=40))
    path = write_report([slower], tmp_path / "page.html", Tariff(1.25, "USD"), local=local)
    page = path.read_text(encoding="utf-8")
    assert "price USD" in page
    assert "24 hours of footage at 24" in page.replace("24.00", "24")
    assert "Not worth it on these" in page


def test_a_study_is_reported_by_its_axes(study: Path, study_report: ReportContent) -> None:
    """Cells that differ only in one axis are compared; failed runs are listed with their reasons."""
    made = study_report
    assert made.summary.startswith("Two formats. 8 runs of 4 cells: 6 done and 2 failed. Median latency: ")
    assert made.summary.endswith("in frozen_graph · 4 vehicles (the slowest).")
    sentences = text_of(chapter_of(made, "comparison"))
    assert "The median of saved_model · 1 vehicle was" in sentences
    assert "The median of frozen_graph · 4 vehicles was" in sentences
    assert sentences.count("too few runs for a test (n = 2 and 2)") == 2
    tables = {table.name: table for table in made.tables()}
    assert {row[3] for row in tables["not_done"].rows} == {"no model 'road-huge': skylane model build road-huge"}
    assert len(tables["results"].rows) == 4
    assert tables["capacity"].rows[1][-2:] == ("no", "p99 is above 300 ms")
    assert "codec" not in "".join(cell.name for cell in load_report_input([study]).study.cells)  # type: ignore[union-attr]


def test_a_study_with_unreadable_frames_is_reported_from_its_runs(tmp_path: Path) -> None:
    """Charts and results of the runs need only the table of runs."""
    folder = write_study(tmp_path, frames=40)
    (folder / "frames.parquet").write_bytes(b"PAR1 not really")
    made = report_on(folder)
    assert "the report compares no frames" in text_of(chapter_of(made, "runs"))
    assert "cells_p50" in {chart.name for chart in made.charts()}
    assert render(made)


def test_folders_that_cannot_be_reported_are_errors(run: Path, tmp_path: Path) -> None:
    """The messages name the file or the conflicting folders."""
    with pytest.raises(LogError, match=r"latency\.csv cannot be read"):
        report_on(tmp_path / "nowhere")
    study = write_study(tmp_path / "study", frames=30)
    with pytest.raises(ReportInputError, match="report each study separately"):
        report_on(run, study)
    with pytest.raises(ReportInputError, match="--local compares runs"):
        load_report_input([study], load_run(run))
    (study / "runs.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(LogError, match=r"runs\.csv, row 1: it has no column cell"):
        report_on(study)


def test_a_page_of_many_frames_stays_small(tmp_path: Path) -> None:
    """The page draws and opens a limited number of frames."""
    made = report_on(write_run(tmp_path / "run", SyntheticRunPlan(frames=5_000)))
    assert len(made.frames["columns"]["sequence"]) < 4_500
    assert max(len(trace.get("x", ())) for chart in made.charts() for trace in chart.traces) < 4_500
    assert len(render(made).encode()) < MAX_PAGE_BYTES


def test_the_page_of_a_short_run_is_small(tmp_path: Path) -> None:
    """A reader can mail the page of the demo, which contains the chart library and images."""
    run = write_run(tmp_path / "run", SyntheticRunPlan(frames=60, overlays=60))
    assert write_report([run]).stat().st_size <= MAX_DEMO_PAGE_BYTES
