"""The chapter on streaming accuracy, in the page, the files, the JSON data and on the terminal."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from analysis.report.cli import report
from analysis.report.data.report_input import load_report_input
from analysis.report.document import report_of
from analysis.report.output.table_files import write_tables
from shared.errors import SkylaneError
from tests.support.streaming_runs import StreamingRunPlan, write_streaming_run, write_truth
from tests.support.synthetic_study import write_study

_FRAMES = 60


def _report(*arguments: object) -> Result:
    texts = [str(argument) for argument in arguments]
    return CliRunner(env={"COLUMNS": "200"}).invoke(report, texts, catch_exceptions=False)


def _tables(folder: Path, truth: Path, *runs: Path) -> None:
    """Writes the tables without charts, which need a browser."""
    write_tables(report_of(load_report_input(runs, truths=[truth])).tables(), folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bag of labels, a run without a presenter, and two runs with one. Tests only write reports into it."""
    folder = tmp_path_factory.mktemp("streaming")
    write_truth(folder / "truth", range(_FRAMES))
    write_streaming_run(folder / "plain", StreamingRunPlan(frames=_FRAMES))
    for number in (1, 2):
        warped = {tick: tick - (tick % 3 == number) for tick in range(2, _FRAMES)}
        write_streaming_run(folder / f"warp-{number}", StreamingRunPlan(frames=_FRAMES, warped=warped))
    return folder


def test_a_run_gets_a_chapter_with_its_ceiling_and_intervals(runs: Path, tmp_path: Path) -> None:
    """The terminal has the main table; the files have the intervals, the ages, the classes and the reasons."""
    ended = _report(runs / "warp-1", "--truth", runs / "truth", "--out", tmp_path / "page.html")
    assert ended.exit_code == 0
    for text in (
        "presented (warp), at the tick",
        "presented (warp), for the tick",
        "newest held",
        "ceiling",
        "no_result",
    ):
        assert text in ended.output
    assert "Streaming accuracy" in (tmp_path / "page.html").read_text(encoding="utf-8")
    _tables(tmp_path, runs / "truth", runs / "warp-1")
    with (tmp_path / "streaming.csv").open(encoding="utf-8") as file:
        at_tick, presented, held, ceiling = csv.DictReader(file)
    assert float(held["mean IoU"]) < float(at_tick["mean IoU"]) < float(presented["mean IoU"])
    assert (at_tick["without output"], at_tick["after due p50 ms"], presented["after due p50 ms"]) == (
        "3",
        "",
        "5.000000",
    )
    assert float(held["mean IoU"]) < float(presented["mean IoU"]) < float(ceiling["mean IoU"]) == 1.0
    assert float(presented["mean IoU low"]) < float(presented["mean IoU"]) < float(presented["mean IoU high"])
    assert float(presented["mean IoU, all ticks"]) < float(presented["mean IoU"])
    assert presented["without output"] == "2"
    for name, text in (("ages", "150 to 250"), ("classes", "car"), ("missing", "no_result"), ("origins", "warped")):
        assert text in (tmp_path / f"streaming_{name}.csv").read_text(encoding="utf-8")


def test_json_has_the_accuracy_of_each_candidate(runs: Path) -> None:
    """Programs get the same numbers, with the ticks that were not scored and why."""
    found = json.loads(_report(runs / "plain", "--truth", runs / "truth", "--json").stdout)["streaming"]
    assert (found["presenter"], found["metric"], found["ticks"], found["scored"]) == (None, "mean IoU", 60, 60)
    assert found["at_tick"] == found["held"]
    assert "for_tick" not in found
    assert found["ceiling"]["accuracy"]["value"] == 1.0
    assert found["at_tick"]["by_class"]["car"] == pytest.approx(4 / 12)
    assert found["missing"] == {"no_result": 2}
    assert [each["from_ms"] for each in found["by_age"]] == [150]
    assert found["origins"]["none"] == {"ticks": 2, "accuracy": None}
    assert "streaming" not in json.loads(_report(runs / "plain", "--json").stdout)


def test_several_runs_are_compared_and_pooled_by_presenter(runs: Path, tmp_path: Path) -> None:
    """Runs of the same presenter together have an interval over runs."""
    folders = [runs / name for name in ("plain", "warp-1", "warp-2")]
    ended = _report(*folders, "--truth", runs / "truth")
    assert ended.exit_code == 0
    assert "all 2 runs, warp" in ended.output
    _tables(tmp_path, runs / "truth", *folders)
    with (tmp_path / "streaming_runs.csv").open(encoding="utf-8") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["plain", "warp-1", "warp-2", "all 2 runs, warp"]
    pooled, parts = rows["all 2 runs, warp"], (rows["warp-1"], rows["warp-2"])
    assert int(pooled["ticks"]) == sum(int(row["ticks"]) for row in parts)
    assert len(json.loads(_report(*folders, "--truth", runs / "truth", "--json").stdout)["runs"]) == 3


def test_bags_that_do_not_fit_the_runs_are_refused(runs: Path, tmp_path: Path) -> None:
    """One bag is for all runs, or each run has its own; a study compares while it runs."""
    truth = ("--truth", runs / "truth")
    with pytest.raises(SkylaneError, match="2 bags with --truth for 3 runs: give one bag for all"):
        _report(runs / "plain", runs / "warp-1", runs / "warp-2", *truth, *truth)
    assert _report(runs / "plain", runs / "warp-1", *truth, *truth, "--json").exit_code == 0
    with pytest.raises(SkylaneError, match="set 'accuracy: true' in the file of the study"):
        _report(write_study(tmp_path, frames=30), *truth)


def test_cautions_stand_on_the_terminal_and_on_the_page(runs: Path, tmp_path: Path) -> None:
    """A reader of only one of them must not miss that most ticks have no labels."""
    write_truth(tmp_path / "part", range(30, 36))
    ended = _report(runs / "plain", "--truth", tmp_path / "part", "--out", tmp_path / "page.html")
    assert "54 of 60 ticks are not scored" in ended.output
    assert "54 of 60 ticks are not scored" in (tmp_path / "page.html").read_text(encoding="utf-8")
