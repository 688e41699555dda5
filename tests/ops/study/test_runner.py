from contextlib import AbstractContextManager
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from analysis.study.measurement import RunResult
from analysis.study.study_folder import COMPLETE, StudyError, StudyFolder, final_manifest, initial_manifest
from analysis.study.study_plan import StudyCell, StudyPlan, WorkerSetup, cells, ordered_groups
from analysis.study.tables import RUN_COLUMNS, write_frames, write_runs
from ops.study.runner import StudyRunner, missing_devices
from ops.study.session import Session
from shared.runlog.latency_log import COLUMNS, Outcome
from tests.support.simulated_study import BrokenError, RecordingListener, SimulatedSessions, plan_file, plan_of

_AXES = {"format": ["frozen_graph", "saved_model"], "vehicles": [1, 2]}


@pytest.fixture
def plan(tmp_path: Path) -> StudyPlan:
    """A plan with four cells, two setups and two repetitions."""
    return plan_of(tmp_path, axes=_AXES, repetitions=2, frames=4, warm_up_frames=1)


def _runner(plan: StudyPlan, root: Path, seed: int = 5) -> StudyRunner:
    return StudyRunner(plan, StudyFolder(root), seed)


def test_every_cell_runs_once_per_repetition_with_new_workers_for_each_block_and_setup(
    plan: StudyPlan, tmp_path: Path
) -> None:
    """The runs follow the split-plot design of the plan."""
    sessions, listener = SimulatedSessions(), RecordingListener()
    _runner(plan, tmp_path / "study").run(sessions.open, {}, listener)
    assert sessions.opened == [setup for setup, _ in ordered_groups(cells(plan), 2, seed=5)]
    assert len(sessions.opened) == 4
    assert len(sessions.played) == len(set(sessions.played)) == 8
    assert [result.row["order"] for result in listener.results] == list(range(1, 9))


def test_an_interrupted_study_is_resumed_in_the_same_order(plan: StudyPlan, tmp_path: Path) -> None:
    """After Ctrl-C, finished runs are kept, and the interrupted run is repeated."""
    whole = SimulatedSessions()
    _runner(plan, tmp_path / "whole").run(whole.open, {}, RecordingListener())

    def interrupted(_: StudyCell) -> float:
        if len(sessions.played) == 4:
            raise KeyboardInterrupt
        return 10.0

    sessions = SimulatedSessions(interrupted)
    with pytest.raises(KeyboardInterrupt):
        _runner(plan, tmp_path / "study").run(sessions.open, {}, RecordingListener())
    runner, rest = _runner(plan, tmp_path / "study"), SimulatedSessions()
    assert runner.done == 3
    interrupted_run = tmp_path / "study" / "cells" / sessions.played[3][0] / "1"
    assert interrupted_run.is_dir()
    runner.run(rest.open, {}, RecordingListener())
    assert sessions.played[:3] + rest.played == whole.played
    assert runner.done == 8
    again = SimulatedSessions()
    runner.run(again.open, {}, RecordingListener())
    assert not again.opened


def test_an_error_during_an_interruption_does_not_hide_it(plan: StudyPlan, tmp_path: Path) -> None:
    """An error raised while closing would otherwise fail the run, and the study would ignore Ctrl-C."""

    def interrupted(_: StudyCell) -> float:
        try:
            raise KeyboardInterrupt
        finally:
            raise BrokenError("the vehicle ended with code -2")

    sessions, listener = SimulatedSessions(interrupted), RecordingListener()
    with pytest.raises(KeyboardInterrupt):
        _runner(plan, tmp_path / "study").run(sessions.open, {}, listener)
    assert not listener.results


def test_a_failing_cell_does_not_affect_others_and_the_next_run_gets_new_workers(
    plan: StudyPlan, tmp_path: Path
) -> None:
    """The workers of a failed run may be broken too; the table has the reason of the failure."""

    def service_ms(cell: StudyCell) -> float:
        if (cell.format, cell.vehicles) == ("saved_model", 2):
            raise BrokenError("the model is not built: run something")
        return 10.0

    sessions, runner = SimulatedSessions(service_ms), _runner(plan, tmp_path / "study")
    runner.run(sessions.open, {}, RecordingListener())
    results = [result for _, result in runner.results()]
    runs = write_runs(runner.folder, results)
    assert list(runs["state"].value_counts().items()) == [("done", 6), ("failed", 2)]
    begun = initial_manifest(plan, Path(plan_file(tmp_path)), 5, 8)
    ended = final_manifest(begun, results, COMPLETE)
    counts = {"done": 6, "skipped": 0, "failed": 2}
    assert ended == begun | counts | {"state": "complete", "ended_ns": ended["ended_ns"]}
    assert ended["ended_ns"] >= begun["started_ns"]
    failed = runs[runs["state"] == "failed"]
    assert set(failed["cell"]) == {"saved_model.2-vehicles"}
    assert set(failed["reason"]) == {"the model is not built: run something"}
    assert failed["total_p50_ms"].isna().all()
    assert failed["answered"].isna().all()
    repaired = SimulatedSessions()
    runner.run(repaired.open, {}, RecordingListener())
    assert {cell for cell, _ in repaired.played} == {"saved_model.2-vehicles"}
    assert runner.done == 8


def test_an_unexpected_error_fails_its_run_and_leaves_a_traceback(tmp_path: Path) -> None:
    """The study continues, and the reason asks the user to report the bug."""

    def service_ms(_: StudyCell) -> float:
        raise ZeroDivisionError("by nothing")

    plan = plan_of(tmp_path, repetitions=1, frames=2, warm_up_frames=0)
    runner, listener = _runner(plan, tmp_path / "study"), RecordingListener()
    runner.run(SimulatedSessions(service_ms).open, {}, listener)
    (result,) = listener.results
    trace = runner.folder.run_folder(runner.planned[0].cell, 1) / "traceback.txt"
    expected = f"a bug in Skylane: ZeroDivisionError: by nothing; please report it with {trace}"
    assert (result.state, result.row["reason"]) == ("failed", expected)
    assert "service_ms" in trace.read_text()


def test_workers_that_do_not_start_fail_only_their_own_cells(plan: StudyPlan, tmp_path: Path) -> None:
    """A model that cannot be loaded fails its own cells."""
    sessions = SimulatedSessions()

    def open_session(setup: WorkerSetup) -> AbstractContextManager[Session]:
        if setup.format == "saved_model":
            raise BrokenError("the worker was not ready")
        return sessions.open(setup)

    listener = RecordingListener()
    _runner(plan, tmp_path / "study").run(open_session, {}, listener)
    assert sorted((result.row["format"], result.state) for result in listener.results) == [
        *[("frozen_graph", "done")] * 4,
        *[("saved_model", "failed")] * 4,
    ]


def test_cells_with_a_missing_device_are_skipped_with_the_reason(tmp_path: Path) -> None:
    """The same study file can be used on machines with and without a GPU."""
    plan = plan_of(tmp_path, axes={"device": ["cpu", "gpu"]}, repetitions=1, frames=3, warm_up_frames=0)
    sessions, listener = SimulatedSessions(), RecordingListener()
    _runner(plan, tmp_path / "study").run(sessions.open, {"gpu": "no GPU here"}, listener)
    assert {(result.row["device"], result.state, result.row.get("reason")) for result in listener.results} == {
        ("cpu", "done", None),
        ("gpu", "skipped", "no GPU here"),
    }
    assert [setup.device for setup in sessions.opened] == ["cpu"]


def test_the_steps_of_a_capacity_search_are_saved(tmp_path: Path) -> None:
    """The steps show how close the next numbers of vehicles came to the limits."""
    plan = plan_of(
        tmp_path,
        axes={"scenario": "capacity"},
        repetitions=1,
        frames=6,
        warm_up_frames=1,
        scenarios={"capacity": {"limit_ms": 35, "most": 8}},
    )
    runner = _runner(plan, tmp_path / "study")
    runner.run(SimulatedSessions().open, {}, RecordingListener())
    runs = write_runs(runner.folder, [result for _, result in runner.results()])
    assert (runs.loc[0, "capacity_vehicles"], runs.loc[0, "metric_value"]) == (3, 3.0)
    assert runs.loc[0, "total_p95_ms"] == pytest.approx(30.0)
    assert pd.isna(runs.loc[0, "total_p99_ms"])  # There are too few frames for p99.
    steps = pd.read_csv(runner.folder.root / "capacity.csv")
    assert list(steps["vehicles"]) == [1, 2, 4, 3]
    assert list(steps["fits"]) == [True, True, False, True]
    assert steps.loc[2, "reason"] == "slowest frame 40.0 ms is over 35 ms"
    write_frames(runner.folder, plan.name, ((run.cell, run.repetition, result) for run, result in runner.results()))
    frames = pd.read_csv(runner.folder.root / "frames.csv")
    assert len(frames) == 7 * (1 + 2 + 4 + 3)
    assert "4-vehicles/vehicle-2" in set(frames["vehicle_run"])
    assert set(frames.loc[frames["vehicle_run"] == "4-vehicles/vehicle-2", "vehicles"]) == {4}


def test_csv_and_parquet_tables_have_the_same_runs_and_frames(plan: StudyPlan, tmp_path: Path) -> None:
    """Integers stay integers in both formats."""
    runner = _runner(plan, tmp_path / "study")
    runner.run(SimulatedSessions().open, {}, RecordingListener())
    write_runs(runner.folder, [result for _, result in runner.results()])
    write_frames(runner.folder, plan.name, ((run.cell, run.repetition, result) for run, result in runner.results()))
    runs = pd.read_parquet(runner.folder.root / "runs.parquet")
    assert list(runs.columns) == list(RUN_COLUMNS)
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


def test_a_folder_with_another_plan_or_seed_is_rejected(plan: StudyPlan, tmp_path: Path) -> None:
    """A table must not mix runs of different plans; the error lists the differences."""
    folder = StudyFolder(tmp_path / "study")
    assert folder.resumed_seed(plan, 5) is None
    folder.begin(plan, initial_manifest(plan, plan_file(tmp_path), 5, 8))
    assert folder.resumed_seed(plan, None) == 5
    reworded = plan.model_copy(update={"description": "in other words"})
    assert folder.resumed_seed(reworded, 5) == 5
    changed = plan_of(tmp_path, axes=_AXES | {"codec": ["jpeg", "raw"]}, repetitions=2, frames=9, warm_up_frames=1)
    with pytest.raises(StudyError, match=r"axes\.codec: \[jpeg\] → \[jpeg, raw\]; frames: 4 → 9"):
        folder.resumed_seed(changed, None)
    with pytest.raises(StudyError, match="with seed 5: omit --seed"):
        folder.resumed_seed(plan, 6)


def test_a_folder_with_other_files_is_rejected(plan: StudyPlan, tmp_path: Path) -> None:
    """A mistyped --out must not remove files of the user."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(StudyError, match="contains files that are not of a study: choose another --out"):
        StudyFolder(tmp_path / "mine").resumed_seed(plan, None)


def test_cells_that_lead_elsewhere_are_not_emptied(plan: StudyPlan, tmp_path: Path) -> None:
    """The study may come from somebody else, and its old runs are removed before new ones."""
    run = StudyFolder(tmp_path / "study").run_folder(cells(plan)[0], 0)
    other = tmp_path / "other" / run.parent.name / "0"
    other.mkdir(parents=True)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "cells").symlink_to(tmp_path / "other")
    with pytest.raises(StudyError, match="study/cells is a link to another place: remove it"):
        StudyFolder(tmp_path / "study").empty_run_folder(cells(plan)[0], 0)
    assert other.is_dir()


def test_an_unreadable_result_is_named(plan: StudyPlan, tmp_path: Path) -> None:
    """A faulty disk can truncate the file; the user can remove it to repeat the run."""
    runner = _runner(plan, tmp_path / "study")
    runner.run(SimulatedSessions().open, {}, RecordingListener())
    run = runner.planned[0]
    path = runner.folder.run_folder(run.cell, run.repetition) / "result.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(StudyError, match=r"result\.json cannot be read .*: remove it to repeat the run"):
        runner.results()


def test_timestamps_stay_exact_in_a_column_with_missing_values(tmp_path: Path) -> None:
    """A failed run has no start time; the start times of other runs must not be converted to floats."""
    at_ns = 1_795_266_133_782_729_087
    rows = [RunResult({"state": "done", "started_ns": at_ns}), RunResult({"state": "failed", "reason": "x"})]
    runs = write_runs(StudyFolder(tmp_path), rows)
    assert list(runs["started_ns"]) == [at_ns, pd.NA]
    assert f",{at_ns}," in (tmp_path / "runs.csv").read_text()


def test_a_missing_device_is_reported_with_its_reason() -> None:
    """The CPU is always available; TensorFlow checks the others."""
    assert missing_devices(["cpu"]) == {}
    missing = missing_devices(["cpu", "gpu:99"])
    assert missing.keys() == {"gpu:99"}
    assert missing["gpu:99"].startswith("device 'gpu:99': ")
