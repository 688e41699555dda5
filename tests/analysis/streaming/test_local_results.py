"""Runs in which the local model answered frames in place of a worker: which results the rows of the chapter count."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.logs.run_log import load_run
from analysis.report.chapters.streaming import streaming_json
from analysis.report.cli import report
from analysis.streaming.run_accuracy import run_accuracy
from tests.support.streaming_runs import STEP_NS, StreamingRunPlan, write_streaming_run, write_truth

_FRAMES = range(20)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A worker answers the even frames after 150 ms, the local model the odd ones after 50 ms."""
    write_truth(tmp_path / "truth", _FRAMES)
    return write_streaming_run(tmp_path / "run", StreamingRunPlan(local=_FRAMES[1::2]))


def test_holding_is_scored_with_and_without_local_results(run: Path) -> None:
    """Holding every result gives ages of one and two frames; holding those of workers gives two and three."""
    accuracy = run_accuracy(load_run(run), run.parent / "truth")
    assert accuracy.held_from_workers is not None
    ages = [None if age is None else age // STEP_NS for age in (tick.age_ns for tick in accuracy.held.ticks)]
    assert ages == [None, None, *[1, 2] * 9]
    ages = [
        None if age is None else age // STEP_NS for age in (tick.age_ns for tick in accuracy.held_from_workers.ticks)
    ]
    assert ages == [None, None, *[2, 3] * 9]
    assert accuracy.held_from_workers.by_class()["car"] < accuracy.held.by_class()["car"]


def test_page_and_data_say_which_results_they_count(run: Path) -> None:
    """Readers compute the numbers again, and need to know that local results are among them, and how many."""
    page, truth = run / "page.html", run.parent / "truth"
    CliRunner().invoke(report, [str(run), "--truth", str(truth), "--out", str(page)], catch_exceptions=False)
    text = page.read_text(encoding="utf-8")
    assert "newest held, workers only" in text
    assert "ceiling, workers only" in text
    assert "Of the 20 results of the ceiling, 10 are those of the local model, logged as answered_locally" in text
    found = streaming_json(run_accuracy(load_run(run), truth))
    assert found["held_from_workers"]["accuracy"].value < found["held"]["accuracy"].value
    assert found["ceiling_from_workers"]["accuracy"].value == 1.0
    plain = write_streaming_run(run.parent / "plain")
    assert "held_from_workers" not in streaming_json(run_accuracy(load_run(plain), truth))
