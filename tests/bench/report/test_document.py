"""What a report says, and what it admits not to know."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.load.synthetic_run import Plan, write_run
from bench.logs.run_log import load_run
from bench.report.content import Caution, Chart, Prose, Report, Section, Table
from bench.report.data.report_input import SubjectError, open_subject
from bench.report.document import ReportError, report_of, write_report
from bench.report.output.charts import to_json
from bench.report.output.number_format import text
from bench.report.output.page import render
from bench.report.output.terminal import show
from shared.runlog.latency_log import LogError
from shared.runlog.percentiles import NOTE
from tests.support import run_damage
from tests.support.synthetic_study import write_study

MOST_BYTES = 15_000_000


def section(report: Report, anchor: str) -> Section:
    """A section by its address."""
    (found,) = (section for section in report.sections if section.anchor == anchor)
    return found


def told(found: Section) -> str:
    """All that a section says in sentences."""
    return " ".join(part.text for part in found.parts if isinstance(part, Prose | Caution))


def reported(*folders: Path) -> Report:
    """The report of some folders."""
    return report_of(open_subject(folders))


def test_a_run_is_told_in_one_measured_sentence(report: Report) -> None:
    """Whoever reads no further knows the most important."""
    assert re.fullmatch(
        r"39\d of 400 frames answered \(\d+ dropped and \d+ lost\); of those, half within 1\d\d ms, 95 % within 1\d\d ms; "
        r"\d\d % of the time is the model\.",
        report.verdict,
    )


def test_a_report_reads_as_a_researcher_does(report: Report) -> None:
    """What ran, whether to trust it, what became of the frames, then the time."""
    anchors = [section.anchor for section in report.sections]
    assert anchors == [
        "provenance", "soundness", "outcomes", "stages", "distribution", "timeline", "throughput", "clocks",
        "resources", "statistics",
    ]  # fmt: skip


def test_every_axis_has_its_unit(report: Report, run: Path, slower: Path, tmp_path: Path) -> None:
    """An axis without one is a picture."""
    charts = [*report.charts(), *reported(run, slower).charts(), *reported(write_study(tmp_path)).charts()]
    assert len(charts) > 20
    for chart in charts:
        measured = [axis for name, axis in chart.layout.items() if name == "xaxis"]
        assert measured, chart.name
        assert re.search(r", (ms|s|%|MB|MB/s|W)(\b|$| )|frames|Mbit/s|one core", measured[0]["title"]["text"]), (
            chart.name
        )
        vertical = chart.layout["yaxis"].get("title", {}).get("text")
        is_named = chart.layout["yaxis"].get("visible") is False or "autorange" in chart.layout["yaxis"]
        assert vertical or is_named, chart.name


def test_every_figure_is_told_in_words_and_numbers(report: Report) -> None:
    """For whoever cannot see it."""
    for chart in report.charts():
        assert re.search(r"\d", chart.caption), chart.name
        assert len(chart.caption) > 40, chart.name


def test_names_of_tables_and_figures_are_files(report: Report, run: Path, slower: Path, tmp_path: Path) -> None:
    """Two of one name would overwrite each other, and lead a link astray."""
    for made in (report, reported(run, slower), reported(write_study(tmp_path))):
        for names in ([table.name for table in made.tables()], [chart.name for chart in made.charts()]):
            assert len(set(names)) == len(names)
            assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)


def test_the_waterfall_ends_where_the_journey_does(report: Report) -> None:
    """Each stage begins where the one before it ended."""
    (waterfall,) = (chart for chart in report.charts() if chart.name == "waterfall")
    ends = 0.0
    for trace in waterfall.traces:
        assert trace["base"][0] == pytest.approx(ends)
        ends = trace["base"][0] + trace["x"][0]


def test_the_same_log_gives_the_same_report(run: Path) -> None:
    """The intervals' seed is fixed: a report that changes by itself is no record."""
    assert render(reported(run)) == render(reported(run))


def test_the_page_asks_for_nothing(report: Report) -> None:
    """It must open in a car, on a plane and in ten years."""
    page = re.sub(r"<script>.*?</script>", "", render(report), flags=re.DOTALL)  # Plotly's own code names addresses.
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert not re.search(r"@import|url\(", page)
    assert "default-src 'none'" in page


def test_no_name_in_a_log_becomes_markup(tmp_path: Path) -> None:
    """A camera may be called anything."""
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    folder = write_run(tmp_path / "run", Plan(frames=30))
    for path in (folder / "latency.csv", folder / "manifest.json", folder / "latency.journal"):
        text = path.read_text(encoding="utf-8").replace("worker-1", hostile).replace("road-small", hostile)
        path.write_text(text, encoding="utf-8")
    page = render(reported(folder))
    assert hostile not in page
    assert "<img src=x" not in page


def test_a_page_that_cannot_be_written_is_told(run: Path, tmp_path: Path) -> None:
    """One line that says what to do."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="choose another --out"):
        write_report([run], tmp_path / "file" / "report.html")


def test_a_run_without_answers_is_reported_without_latency(tmp_path: Path) -> None:
    """What became of its frames is the whole story; nothing else is drawn."""
    made = reported(write_run(tmp_path / "run", Plan(frames=40, unanswered=1.0)))
    assert made.verdict.startswith("None of 40 frames was answered (")
    for anchor in ("stages", "distribution", "timeline", "throughput", "clocks", "statistics"):
        assert told(section(made, anchor)).startswith("Not measured: no"), anchor
    assert [chart.name for chart in made.charts() if not chart.name.startswith("resources")] == ["outcomes"]
    assert render(made)


def test_a_run_of_one_frame_is_reported(tmp_path: Path) -> None:
    """Intervals, trends and histograms of one value must not be made up, nor end in an error."""
    made = reported(write_run(tmp_path / "run", Plan(frames=1, unanswered=0.0)))
    assert made.verdict.startswith("1 of 1 frames answered")
    assert render(made)


def cut_short(log: str) -> str:
    """Half a row at the end."""
    return log[: len(log) - 100]


def a_hole(log: str) -> str:
    """A cell without its number."""
    return _with(log, "inferred_ms", "")


def garbage(log: str) -> str:
    """Text where a number belongs."""
    return _with(log, "inferred_ms", "soon")


def backwards(log: str) -> str:
    """A clock that ran backwards."""
    return _with(log, "t_inferred_ns", "1000")


def _with(log: str, column: str, text: str) -> str:
    """The log with another text in a column of its row 5."""
    lines = log.splitlines(keepends=True)
    fields = lines[4].split(",")
    fields[lines[0].split(",").index(column)] = text
    return "".join([*lines[:4], ",".join(fields), *lines[5:]])


@pytest.mark.parametrize("damage", [cut_short, a_hole, garbage, backwards])
def test_a_damaged_log_is_reported_as_far_as_it_goes(tmp_path: Path, damage: Callable[[str], str]) -> None:
    """And the rest is said to be missing, by file and row, never filled in."""
    folder = write_run(tmp_path / "run", Plan(frames=60, unanswered=0.0))
    path = folder / "latency.csv"
    path.write_text(run_damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    made = reported(folder)
    assert "never filled in" in told(section(made, "soundness"))
    (problems,) = (table for table in made.tables() if table.name == "problems")
    assert any("latency.csv" in str(row[0]) for row in problems.rows)
    assert re.match(r"(59|60) of (59|60) frames? answered", made.verdict)
    assert render(made)


def test_percentiles_stand_beside_what_they_leave_out(tmp_path: Path) -> None:
    """A worker that stalls lets frames be given up: p99 of the answered ones does not show it."""
    made = reported(write_run(tmp_path / "stalled", Plan(frames=200, unanswered=0.5)))
    for anchor in ("distribution", "statistics"):
        captions = [part.caption for part in section(made, anchor).parts if isinstance(part, Chart | Table)]
        assert any(re.search(r"The other \d+ of 200 frames read \(\d\d %\) have no total", text) for text in captions)
    several = reported(tmp_path / "stalled", tmp_path / "stalled")
    (totals,) = (table for table in several.tables() if table.name == "totals")
    assert [column.heading for column in totals.columns[:3]] == ["run", "frames", "answered %"]
    assert 30 < float(str(totals.rows[0][2])) < 70
    assert several.verdict.startswith("Half the answered frames")


def test_few_frames_have_no_tail(tmp_path: Path) -> None:
    """One in twenty of 15 frames is none."""
    made = reported(write_run(tmp_path / "run", Plan(frames=15, unanswered=0.0)))
    assert ", all within " in made.verdict
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


def test_a_sample_that_follows_at_once_is_no_pause_of_the_traffic(tmp_path: Path) -> None:
    """At its end a run is sampled once more, some milliseconds after the last second: nothing has flowed since."""
    folder = write_run(tmp_path / "run", Plan(frames=60))
    path = folder / "resources.csv"
    last = [line for line in path.read_text(encoding="utf-8").splitlines() if ",broker," in line][-1]
    at_ns, rest = last.split(",", 1)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{int(at_ns) + 5_000_000},{rest}\n")
    (traffic,) = (chart for chart in reported(folder).charts() if chart.name == "resources_traffic")
    assert all(min(trace["y"]) > 0 for trace in traffic.traces)


def test_what_was_not_sampled_is_said(tmp_path: Path) -> None:
    """An empty chapter would look like a run that used nothing."""
    folder = write_run(tmp_path / "run", Plan(frames=30))
    (folder / "resources.csv").unlink()
    (folder / "manifest.json").unlink()
    made = reported(folder)
    assert told(section(made, "resources")) == "Not measured: the run has no resources.csv."
    assert "not known" in told(section(made, "provenance"))


def test_untrained_weights_are_said(tmp_path: Path) -> None:
    """The times are true, the masks are not."""
    folder = write_run(tmp_path / "run", Plan(frames=30))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["model"]["trained"] = False
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert "random" in told(section(reported(folder), "provenance"))


def test_who_answered_is_said_and_that_they_were_of_several_versions(tmp_path: Path) -> None:
    """Workers of one group share the frames, whatever each serves by the model's name."""

    def answerers(found: Section) -> str:
        (table,) = (part for part in found.parts if isinstance(part, Table))
        return next(str(value) for what, value in table.rows if what == "answered by")

    folder = write_run(tmp_path / "run", Plan(frames=30, unanswered=0))
    assert answerers(section(reported(folder), "provenance")) == "worker-1 (version 1, tensorflow fp32): 30 frames"
    run_damage.change(folder, run_damage.line_of(folder, "answered"), model_version="2", engine="openvino bf16")
    found = section(reported(folder), "provenance")
    assert answerers(found).endswith("29 frames; worker-1 (version 2, openvino bf16): 1 frames")
    assert "Several versions of the model answered" in told(found)


def test_models_of_one_version_that_are_not_the_same_are_told_apart(tmp_path: Path) -> None:
    """Whoever retrains a model and forgets its number mixes two in one group: the log's columns cannot show it."""
    folder = write_run(tmp_path / "run", Plan(frames=30))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for hashes, is_told in ((["a"], False), (["a", "b"], True)):
        manifest["answered_by"] = [{"worker": "w", "model_version": "1", "sha256": each} for each in hashes]
        (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        assert ("Several different models" in told(section(reported(folder), "provenance"))) is is_told


def test_two_runs_get_one_verdict_and_no_p_value(run: Path, slower: Path) -> None:
    """Hundreds of frames of one run each are two runs: sentence and table say so, in the same words."""
    made = reported(run, slower)
    sentence = told(section(made, "comparison"))
    verdict = "too few runs to tell (n = 1 and 1)"
    assert re.search(r"slower had a median [\d.]+ ms higher than first in these runs", sentence)
    assert verdict in sentence
    (table,) = (table for table in made.tables() if table.name == "comparison")
    assert table.rows[0][-2:] == (verdict, "–")
    page = re.sub(r"<script.*?</script>", "", render(made), flags=re.DOTALL)
    assert not re.search(r"p\s*[=<]\s*0\.\d", page)
    shown = [str(part) for part in show(open_subject([run, slower]), made) if isinstance(part, str)]
    assert shown == [sentence]


def test_cost_and_offloading_are_told_where_they_are_asked_for(run: Path, slower: Path, tmp_path: Path) -> None:
    """One page a question."""
    path = write_report([slower], tmp_path / "page.html", price_per_hour=1.25, currency="USD", local=run)
    page = path.read_text(encoding="utf-8")
    assert "price USD" in page
    assert "24 hours of footage at 24" in page.replace("24.00", "24")
    assert "Not worth it on these" in page


def test_a_study_is_told_by_its_axes(tmp_path: Path) -> None:
    """Cells that differ in one axis alone are compared; what failed says why."""
    made = reported(write_study(tmp_path))
    assert made.verdict.startswith(
        "Two formats. 8 runs of 4 cells: 6 done and 2 failed. Half the answered frames within "
    )
    assert made.verdict.endswith("in frozen_graph · 4 vehicles, the slowest.")
    sentences = told(section(made, "comparison"))
    assert "saved_model · 1 vehicle had a median" in sentences
    assert "frozen_graph · 4 vehicles had a median" in sentences
    assert sentences.count("too few runs to tell (n = 2 and 2)") == 2
    tables = {table.name: table for table in made.tables()}
    assert {row[3] for row in tables["not_done"].rows} == {"no model 'road-huge': skylane model build road-huge"}
    assert len(tables["results"].rows) == 4
    assert tables["capacity"].rows[1][-2:] == ("no", "p99 is above 300 ms")
    assert "codec" not in "".join(cell.name for cell in open_subject([tmp_path]).study.cells)  # type: ignore[union-attr]


def test_the_warm_up_of_a_study_counts_for_nothing(tmp_path: Path) -> None:
    """It is played so that it need not be measured."""
    made = reported(write_study(tmp_path, frames=60))
    (results,) = (table for table in made.tables() if table.name == "results")
    counts = {row[0]: row[2] for row in results.rows}
    assert 90 <= int(str(counts["frozen_graph · 1 vehicle"])) <= 100


def test_a_study_whose_frames_are_gone_keeps_its_runs(tmp_path: Path) -> None:
    """The table of runs is the study; frames only sharpen it."""
    folder = write_study(tmp_path, frames=40)
    (folder / "frames.parquet").write_bytes(b"PAR1 not really")
    made = reported(folder)
    assert "frames are not compared" in told(section(made, "runs"))
    assert "cells_p50" in {chart.name for chart in made.charts()}
    assert render(made)


def test_folders_that_hold_nothing_are_told(run: Path, tmp_path: Path) -> None:
    """Naming the file, in one line."""
    with pytest.raises(LogError, match=r"latency\.csv cannot be read"):
        reported(tmp_path / "nowhere")
    study = write_study(tmp_path / "study", frames=30)
    with pytest.raises(SubjectError, match="report a study alone"):
        reported(run, study)
    with pytest.raises(SubjectError, match="--local weighs runs"):
        open_subject([study], load_run(run))
    (study / "runs.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(LogError, match=r"runs\.csv, row 1: it has no column cell"):
        reported(study)


def test_a_page_of_many_frames_stays_small(tmp_path: Path) -> None:
    """What grows with them leaves 100,000 room beside Plotly, the other figures and the pictures."""
    made = reported(write_run(tmp_path / "run", Plan(frames=10_000)))
    (timeline,) = (chart for chart in made.charts() if chart.name == "timeline")
    growing = len(to_json(timeline)) + len(json.dumps(made.frames))
    library, others, pictures = 4_900_000, 700_000, 1_000_000
    assert library + others + pictures + 10 * growing < MOST_BYTES


def test_parts_are_of_known_kinds(report: Report) -> None:
    """A table that is only folded is written to --tables all the same."""
    assert "manifest" in {table.name for table in report.tables()}
    assert all(isinstance(part, Table) for part in report.tables())
    assert all(isinstance(part, Chart) for part in report.charts())
