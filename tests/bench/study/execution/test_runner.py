from contextlib import AbstractContextManager
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from bench.study.execution.cell_run import Result
from bench.study.execution.runner import Runner
from bench.study.execution.session import Session
from bench.study.plan.cell import Cell, WorkerSetup
from bench.study.plan.run_order import turns
from bench.study.plan.study_plan import Plan, cells
from bench.study.results.folder import StudyError, StudyFolder
from bench.study.results.provenance import begun
from bench.study.results.tables import RUNS, write_frames, write_runs
from shared.runlog.latency_log import COLUMNS, Outcome
from tests.support.simulated_study import BrokenError, Sessions, Silent, plan_file, plan_of

_AXES = {"format": ["frozen_graph", "saved_model"], "vehicles": [1, 2]}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Four cells, two setups, two repetitions."""
    return plan_of(tmp_path, axes=_AXES, repetitions=2, frames=4, warm_up_frames=1)


def _runner(plan: Plan, root: Path, seed: int = 5) -> Runner:
    return Runner(plan, StudyFolder(root), seed)


def test_every_cell_is_run_once_a_repetition_with_new_workers_for_each_block_and_setup(
    plan: Plan, tmp_path: Path
) -> None:
    """The design that the tables claim is the design that ran."""
    sessions, watcher = Sessions(), Silent()
    _runner(plan, tmp_path / "study").run(sessions.open, {}, watcher)
    assert sessions.opened == [turn.setup for turn in turns(cells(plan), 2, seed=5)]
    assert len(sessions.opened) == 4
    assert len(sessions.played) == len(set(sessions.played)) == 8
    assert [result.row["order"] for result in watcher.results] == list(range(1, 9))


def test_an_interrupted_study_goes_on_where_it_stopped_in_the_same_order(plan: Plan, tmp_path: Path) -> None:
    """A study of hours must survive Ctrl-C: what was finished is kept, what was half made is made again."""
    whole = Sessions()
    _runner(plan, tmp_path / "whole").run(whole.open, {}, Silent())

    def interrupted(_: Cell) -> float:
        if len(sessions.played) == 4:
            raise KeyboardInterrupt
        return 10.0

    sessions = Sessions(interrupted)
    with pytest.raises(KeyboardInterrupt):
        _runner(plan, tmp_path / "study").run(sessions.open, {}, Silent())
    runner, rest = _runner(plan, tmp_path / "study"), Sessions()
    assert runner.done == 3
    half_made = tmp_path / "study" / "cells" / sessions.played[3][0] / "1"
    assert half_made.is_dir()
    runner.run(rest.open, {}, Silent())
    assert sessions.played[:3] + rest.played == whole.played
    assert runner.done == 8
    again = Sessions()
    runner.run(again.open, {}, Silent())
    assert not again.opened


def test_an_interruption_is_no_failed_run_where_a_part_cannot_be_closed(plan: Plan, tmp_path: Path) -> None:
    """What a part says on the way out takes the interruption's place: the study would go on as if nobody had pressed Ctrl-C."""

    def interrupted(_: Cell) -> float:
        try:
            raise KeyboardInterrupt
        finally:
            raise BrokenError("the vehicle ended with code -2")

    sessions, watcher = Sessions(interrupted), Silent()
    with pytest.raises(KeyboardInterrupt):
        _runner(plan, tmp_path / "study").run(sessions.open, {}, watcher)
    assert not watcher.results


def test_a_failing_cell_fails_alone_and_the_next_one_gets_new_workers(plan: Plan, tmp_path: Path) -> None:
    """What broke one run may have broken its workers; the others must not pay, and the reason must be in the table."""

    def service_ms(cell: Cell) -> float:
        if (cell.format, cell.vehicles) == ("saved_model", 2):
            raise BrokenError("the model is not built: run something")
        return 10.0

    sessions, runner = Sessions(service_ms), _runner(plan, tmp_path / "study")
    runner.run(sessions.open, {}, Silent())
    runs = write_runs(runner.folder, [result for _, result in runner.results()])
    assert list(runs["state"].value_counts().items()) == [("done", 6), ("failed", 2)]
    failed = runs[runs["state"] == "failed"]
    assert set(failed["cell"]) == {"saved_model.2-vehicles"}
    assert set(failed["reason"]) == {"the model is not built: run something"}
    assert failed["total_p50_ms"].isna().all()
    assert failed["answered"].isna().all()
    mended = Sessions()
    runner.run(mended.open, {}, Silent())
    assert {cell for cell, _ in mended.played} == {"saved_model.2-vehicles"}
    assert runner.done == 8


def test_a_bug_costs_its_run_and_leaves_its_traceback(tmp_path: Path) -> None:
    """A night's study must not be lost to one; nor may the bug pass for a mistake of the user's."""

    def service_ms(_: Cell) -> float:
        raise ZeroDivisionError("by nothing")

    plan = plan_of(tmp_path, repetitions=1, frames=2, warm_up_frames=0)
    runner, watcher = _runner(plan, tmp_path / "study"), Silent()
    runner.run(Sessions(service_ms).open, {}, watcher)
    (result,) = watcher.results
    trace = runner.folder.run(runner.planned[0].cell, 1) / "traceback.txt"
    expected = f"a bug of ours: ZeroDivisionError: by nothing; please report it with {trace}"
    assert (result.state, result.row["reason"]) == ("failed", expected)
    assert "service_ms" in trace.read_text()


def test_workers_that_do_not_start_fail_their_own_cells(plan: Plan, tmp_path: Path) -> None:
    """A model that cannot be loaded costs its cells and no others."""
    sessions = Sessions()

    def open_session(setup: WorkerSetup) -> AbstractContextManager[Session]:
        if setup.format == "saved_model":
            raise BrokenError("the worker was not ready")
        return sessions.open(setup)

    watcher = Silent()
    _runner(plan, tmp_path / "study").run(open_session, {}, watcher)
    assert sorted((result.row["format"], result.state) for result in watcher.results) == [
        *[("frozen_graph", "done")] * 4,
        *[("saved_model", "failed")] * 4,
    ]


def test_cells_whose_device_is_not_here_are_skipped_with_the_reason(tmp_path: Path) -> None:
    """A study for two machines runs on either: what a machine lacks is no failure of the system."""
    plan = plan_of(tmp_path, axes={"device": ["cpu", "gpu"]}, repetitions=1, frames=3, warm_up_frames=0)
    sessions, watcher = Sessions(), Silent()
    _runner(plan, tmp_path / "study").run(sessions.open, {"gpu": "no GPU here"}, watcher)
    assert {(result.row["device"], result.state, result.row.get("reason")) for result in watcher.results} == {
        ("cpu", "done", None),
        ("gpu", "skipped", "no GPU here"),
    }
    assert [setup.device for setup in sessions.opened] == ["cpu"]


def test_a_search_for_capacity_keeps_its_steps(tmp_path: Path) -> None:
    """The number alone cannot be judged; how close the others came can."""
    plan = plan_of(
        tmp_path,
        axes={"scenario": "capacity"},
        repetitions=1,
        frames=6,
        warm_up_frames=1,
        scenarios={"capacity": {"limit_ms": 35, "most": 8}},
    )
    runner = _runner(plan, tmp_path / "study")
    runner.run(Sessions().open, {}, Silent())
    runs = write_runs(runner.folder, [result for _, result in runner.results()])
    assert (runs.loc[0, "capacity_vehicles"], runs.loc[0, "metric_value"]) == (3, 3.0)
    assert runs.loc[0, "total_p95_ms"] == pytest.approx(30.0)
    assert pd.isna(runs.loc[0, "total_p99_ms"])  # Of so few frames there is none.
    steps = pd.read_csv(runner.folder.root / "capacity.csv")
    assert list(steps["vehicles"]) == [1, 2, 4, 3]
    assert list(steps["fits"]) == [True, True, False, True]
    assert steps.loc[2, "reason"] == "slowest frame 40.0 ms is over 35 ms"
    write_frames(runner.folder, plan.name, ((run.cell, run.repetition, result) for run, result in runner.results()))
    frames = pd.read_csv(runner.folder.root / "frames.csv")
    assert len(frames) == 7 * (1 + 2 + 4 + 3)
    assert "4-vehicles/vehicle-2" in set(frames["vehicle_run"])
    assert set(frames.loc[frames["vehicle_run"] == "4-vehicles/vehicle-2", "vehicles"]) == {4}


def test_the_tables_have_every_run_and_frame_and_csv_says_what_parquet_says(plan: Plan, tmp_path: Path) -> None:
    """Whoever reads one must find what the other's reader found, with whole numbers whole."""
    runner = _runner(plan, tmp_path / "study")
    runner.run(Sessions().open, {}, Silent())
    write_runs(runner.folder, [result for _, result in runner.results()])
    write_frames(runner.folder, plan.name, ((run.cell, run.repetition, result) for run, result in runner.results()))
    runs = pd.read_parquet(runner.folder.root / "runs.parquet")
    assert list(runs.columns) == list(RUNS)
    assert (runs[[outcome.value for outcome in Outcome]].sum(axis=1) == runs["frames_read"]).all()
    assert set(runs["model_sha256"]) == {"a" * 64}
    assert (set(runs["commit"]), set(runs["version_python"])) == ({"c0ffee"}, {"3"})
    assert (runs["worker_cpu_percent"] == 150).all()
    frames = pd.read_parquet(runner.folder.root / "frames.parquet")
    assert len(frames) == sum(runs["frames_read"])
    assert set(frames["phase"]) == {"warm_up", "measured"}
    assert set(COLUMNS) <= set(frames.columns)
    for name, table in (("runs", runs), ("frames", frames)):
        read = pd.read_csv(runner.folder.root / f"{name}.csv", dtype=table.dtypes.to_dict(), keep_default_na=True)
        filled = {column: "" for column in table.columns if str(table[column].dtype) in ("str", "string", "object")}
        assert_frame_equal(read.fillna(filled), table.fillna(filled), check_dtype=False)


def test_a_changed_plan_is_refused_in_a_folder_that_holds_another(plan: Plan, tmp_path: Path) -> None:
    """Runs of two plans in one table would be compared as if they were one."""
    folder = StudyFolder(tmp_path / "study")
    assert folder.known_seed(plan, 5) is None
    folder.begin(plan, begun(plan, plan_file(tmp_path), 5, 8))
    assert folder.known_seed(plan, None) == 5
    reworded = plan.model_copy(update={"description": "in other words"})
    assert folder.known_seed(reworded, 5) == 5
    changed = plan_of(tmp_path, axes=_AXES | {"codec": ["jpeg", "raw"]}, repetitions=2, frames=9, warm_up_frames=1)
    with pytest.raises(StudyError, match=r"axes\.codec: \[jpeg\] → \[jpeg, raw\]; frames: 4 → 9"):
        folder.known_seed(changed, None)
    with pytest.raises(StudyError, match="with seed 5: leave --seed out"):
        folder.known_seed(plan, 6)


def test_a_folder_that_holds_something_else_is_left_alone(plan: Plan, tmp_path: Path) -> None:
    """--out may be mistyped; nothing of the user's is removed."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(StudyError, match="holds something else than a study: choose another --out"):
        StudyFolder(tmp_path / "mine").known_seed(plan, None)


def test_a_result_that_cannot_be_read_is_named(plan: Plan, tmp_path: Path) -> None:
    """Half a file cannot come from us, but a disk can lose it: the user must learn which."""
    runner = _runner(plan, tmp_path / "study")
    runner.run(Sessions().open, {}, Silent())
    run = runner.planned[0]
    path = runner.folder.run(run.cell, run.repetition) / "result.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(StudyError, match=r"result\.json cannot be read .*: remove it, and the run is made again"):
        runner.results()


def test_stamps_keep_every_digit_beside_runs_that_have_none(tmp_path: Path) -> None:
    """A run that failed has no start; a table with gaps must not take its neighbours' stamps through floats."""
    at_ns = 1_795_266_133_782_729_087
    rows = [Result({"state": "done", "started_ns": at_ns}), Result({"state": "failed", "reason": "x"})]
    runs = write_runs(StudyFolder(tmp_path), rows)
    assert list(runs["started_ns"]) == [at_ns, pd.NA]
    assert f",{at_ns}," in (tmp_path / "runs.csv").read_text()
