import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.logs.run_log import load_run, load_runs
from shared.resources.sampler import COLUMNS as RESOURCES
from shared.runlog.columns import ADDED
from shared.runlog.latency_log import COLUMNS, Outcome
from tests.support import run_damage
from tests.support.run_damage import EARLIER_RUNS


def test_every_cell_has_the_value_of_the_file(consistent_run: Path) -> None:
    """The reader must not round, shift or fill in any value; the standard library's CSV reader is the reference."""
    run = load_run(consistent_run)
    assert run.problems == ()
    assert (run.name, run.folder, run.manifest["session"]) == ("run", consistent_run, run.frames["session"].iloc[0])
    assert tuple(run.frames.columns) == COLUMNS
    for (_, read), written in zip(run.frames.iterrows(), run_damage.rows(consistent_run), strict=True):
        for name, text in written.items():
            if run.frames[name].dtype == "str":
                assert read[name] == text
            elif not text:
                assert pd.isna(read[name])
            elif name.endswith("_ms"):
                assert read[name] == float(text)
            else:
                assert str(read[name]) == text


def test_columns_have_the_documented_types(consistent_run: Path) -> None:
    """A timestamp stored as a float would lose two hundred nanoseconds."""
    frames = load_run(consistent_run).frames
    assert {str(frames[name].dtype) for name in COLUMNS if name.startswith("t_")} == {"Int64"}
    assert {str(frames[name].dtype) for name in COLUMNS if name.endswith("_ms")} == {"float64"}
    assert str(frames["reason"].dtype) == "str"
    assert np.isnan(np.asarray(frames["t_returned_ns"], np.float64)).any()  # Dropped frames.


def test_resource_samples_are_read(consistent_run: Path) -> None:
    """The vehicle samples itself and the given worker from the start to the end of the run."""
    run = load_run(consistent_run)
    assert tuple(run.resources.columns) == RESOURCES
    assert set(run.resources["node"]) == {"machine", "vehicle/car", "worker/sound-worker"}
    vehicle = run.resources[run.resources["node"] == "vehicle/car"]
    assert len(vehicle) >= 2
    assert (vehicle["rss_bytes"] > 0).all()
    assert vehicle["at_ns"].is_monotonic_increasing
    assert vehicle["bytes_out"].iloc[-1] > run.frames["bytes_up"].sum()
    assert (vehicle["gpu_percent"].isna()).all()
    assert run.manifest["sampling"]["samples"] == len(vehicle) - 1  # The manifest is written before the last sample.


def test_the_manifest_contains_everything_needed_to_repeat_the_run(consistent_run: Path) -> None:
    """Source, model, settings, seed, host and commit are recorded."""
    manifest = load_run(consistent_run).manifest
    assert (manifest["kind"], manifest["schema"], manifest["state"]) == ("run", 5, "complete")
    assert manifest["started_ns"] < manifest["ended_ns"]
    assert {"vehicle", "source", "model", "configuration", "seed", "host", "commit", "sampling"} <= manifest.keys()
    assert manifest["configuration"]["arrival_rate_hz"] == 200


def test_columns_of_a_later_version_are_kept_as_text(damaged_run: Path) -> None:
    """A log of a newer vehicle stays readable."""
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, [f"{text[0]},t_teleported_ns", *(f"{line},7" for line in text[1:])])
    run = load_run(damaged_run)
    assert not run.problems
    assert set(run.frames["t_teleported_ns"]) == {"7"}


@pytest.mark.parametrize("folder", EARLIER_RUNS, ids=lambda folder: folder.name)
def test_columns_that_an_earlier_version_lacks_are_empty(folder: Path) -> None:
    """Runs of an earlier version are compared with new ones."""
    run = load_run(folder)
    assert not run.problems
    assert tuple(run.frames.columns) == COLUMNS
    assert (run.frames["outcome"] == Outcome.ANSWERED).all()
    added = run.frames[list(ADDED)]
    assert (added.isna() | (added == "")).all(axis=None)
    assert {str(run.frames[name].dtype) for name in ("gate_distance", "local_confidence")} == {"float64"}
    assert str(run.frames["reused_sequence"].dtype) == "Int64"


def test_distances_and_confidences_are_numbers(gated_run: Path) -> None:
    """A researcher plots them against the outcome."""
    frames = load_run(gated_run).frames
    reused = frames[frames["outcome"] == Outcome.REUSED]
    written = [row for row in run_damage.rows(gated_run) if row["outcome"] == Outcome.REUSED]
    assert reused["gate_distance"].tolist() == [float(row["gate_distance"]) for row in written]
    assert reused["reused_sequence"].tolist() == [int(row["reused_sequence"]) for row in written]
    assert reused["local_confidence"].isna().all()


def test_a_run_without_frames_is_read(damaged_run: Path) -> None:
    """A vehicle may be stopped before its first frame is due."""
    run_damage.write(damaged_run, run_damage.lines(damaged_run)[:1])
    run = load_run(damaged_run)
    assert len(run.frames) == 0
    assert tuple(run.frames.columns) == COLUMNS
    assert str(run.frames["total_ms"].dtype) == "float64"


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["a/run", "b/other"], ["run", "other"]),
        (["a/run", "b/run"], ["a/run", "b/run"]),
        (["a/run", "a/run"], ["run (1)", "run (2)"]),
        ([], []),
    ],
)
def test_runs_get_distinct_names(consistent_run: Path, tmp_path: Path, folders: list[str], names: list[str]) -> None:
    """The folders of a study's vehicles have equal names, so that more of their paths is needed."""
    for folder in folders:
        shutil.copytree(consistent_run, tmp_path / folder, dirs_exist_ok=True)
    assert [run.name for run in load_runs([tmp_path / folder for folder in folders])] == names
