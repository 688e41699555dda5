"""Reports of runs with several workers."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from analysis.logs.run_log import load_run
from analysis.report.chapters.run import workers
from analysis.report.content import Chapter, Chart, ReportTable
from analysis.report.data.answered_frames import answered_frames, first_due_ns
from analysis.report.data.report_input import load_report_input
from analysis.report.document import report_of
from analysis.report.results import report_json
from analysis.report.stage_styles import SERIES
from tests.support.synthetic_run import SyntheticRunPlan, write_run

WORKERS = 4


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with four workers, the last one slow, and two ways of dispatch; tests must not change it."""
    return write_run(tmp_path_factory.mktemp("runs") / "shared", SyntheticRunPlan(frames=400, workers=WORKERS))


def chapter_on(folder: Path) -> Chapter:
    """Returns the chapter about workers."""
    frames = load_run(folder).frames
    (chapter,) = workers.chapters(frames, answered_frames(frames), first_due_ns(frames))
    return chapter


def test_each_worker_has_its_frames_and_latency(shared_run: Path) -> None:
    """A slow worker among fast ones is the usual reason for a long tail."""
    source = load_report_input([shared_run])
    (chapter,) = (chapter for chapter in report_of(source).chapters if chapter.anchor == "workers")
    table = chapter.parts[0]
    assert isinstance(table, ReportTable)
    log = load_run(shared_run).frames
    answered = log[log["outcome"] == "answered"]
    assert [row[0] for row in table.rows] == [f"worker-{number + 1}" for number in range(WORKERS)]
    for worker, frames, percent, inference, p50, _, by_load, by_group in table.rows:
        own = answered[answered["worker"] == worker]
        assert frames == len(own) == by_load + by_group  # type: ignore[operator]  # Both are counts.
        assert percent == pytest.approx(100 * len(own) / len(answered))
        assert (inference, p50) == pytest.approx((own["inferred_ms"].median(), own["total_ms"].median()))
    assert table.rows[-1][3] > 2 * table.rows[0][3]  # type: ignore[operator]  # Both are times.
    sent = log["dispatch"].value_counts()
    assert f"{sent['load']} (89 %) to a worker that it chose by load and {sent['group']} (11 %) to" in table.caption
    listed = report_json(source)["workers"]
    assert [each["dispatched"]["load"] for each in listed] == [row[6] for row in table.rows]


def test_the_frames_of_each_worker_are_drawn_over_time(shared_run: Path) -> None:
    """Every answered frame is in one bar, so the height of the bars is the throughput."""
    chart = chapter_on(shared_run).parts[1]
    assert isinstance(chart, Chart)
    answered = load_run(shared_run).frames["outcome"] == "answered"
    assert [trace["name"].split()[0] for trace in chart.traces] == [f"worker-{n + 1}" for n in range(WORKERS)]
    assert sum(int(trace["y"].sum()) for trace in chart.traces) == answered.sum()


def test_many_workers_have_as_many_bars_as_there_are_colours(tmp_path: Path) -> None:
    """Two workers of one colour could not be distinguished."""
    chart = chapter_on(write_run(tmp_path / "run", SyntheticRunPlan(frames=400, workers=11))).parts[1]
    assert isinstance(chart, Chart)
    names = [trace["name"].rsplit(" ", 1)[0] for trace in chart.traces]
    assert len(names) == len(SERIES)
    assert names[-1] == "other workers"
    assert len({trace["marker"]["color"] for trace in chart.traces}) == len(SERIES)


def test_a_log_without_the_column_has_no_ways_of_dispatch(shared_run: Path, tmp_path: Path) -> None:
    """Earlier versions always sent frames to the group."""
    folder = tmp_path / "run"
    shutil.copytree(shared_run, folder)
    log = pd.read_csv(folder / "latency.csv", dtype=str, keep_default_na=False).drop(columns="dispatch")
    log.to_csv(folder / "latency.csv", index=False)
    table = chapter_on(folder).parts[0]
    assert isinstance(table, ReportTable)
    assert table.headings[-1] == "total p99 ms"
    assert "broker" not in table.caption
