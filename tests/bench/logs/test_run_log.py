"""A run read with pandas, against the same run read by the standard library."""

import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.logs.run_log import load_run, load_runs
from shared.resources.sampler import COLUMNS as RESOURCES
from shared.runlog.latency_log import COLUMNS, Outcome
from tests.support import run_damage


def test_every_cell_is_what_the_file_says(consistent_run: Path) -> None:
    """Every figure of a report comes through here: nothing may be rounded, shifted or filled in on the way."""
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


def test_columns_have_the_types_that_are_promised(consistent_run: Path) -> None:
    """A stamp in a float loses two hundred nanoseconds; text in a number column breaks every sum."""
    frames = load_run(consistent_run).frames
    assert {str(frames[name].dtype) for name in COLUMNS if name.startswith("t_")} == {"Int64"}
    assert {str(frames[name].dtype) for name in COLUMNS if name.endswith("_ms")} == {"float64"}
    assert str(frames["reason"].dtype) == "str"
    assert np.isnan(np.asarray(frames["t_returned_ns"], np.float64)).any()  # Of those that were dropped.


def test_ten_lines_of_pandas_give_the_total(consistent_run: Path) -> None:
    """What a researcher does with the frames must agree with what the log promises."""
    frames = load_run(consistent_run).frames
    answered = frames[frames["outcome"] == Outcome.ANSWERED]
    total_ns = answered["t_mask_decoded_ns"] - answered["t_due_ns"]
    assert [Decimal(int(value)) / 1_000_000 for value in total_ns] == [
        Decimal(row["total_ms"]) for row in run_damage.rows(consistent_run) if row["outcome"] == Outcome.ANSWERED
    ]


def test_what_was_sampled_beside_the_run_is_there(consistent_run: Path) -> None:
    """The vehicle samples itself in every run, and what it was told to: from the first look to the last."""
    run = load_run(consistent_run)
    assert tuple(run.resources.columns) == RESOURCES
    assert set(run.resources["node"]) == {"machine", "vehicle/car", "worker/sound-worker"}
    vehicle = run.resources[run.resources["node"] == "vehicle/car"]
    assert len(vehicle) >= 2
    assert (vehicle["rss_bytes"] > 0).all()
    assert vehicle["at_ns"].is_monotonic_increasing
    assert vehicle["bytes_out"].iloc[-1] > run.frames["bytes_up"].sum()
    assert (vehicle["gpu_percent"].isna()).all()
    assert run.manifest["sampling"]["samples"] == len(vehicle) - 1  # The manifest is written just before the last.


def test_the_manifest_tells_where_a_run_comes_from(consistent_run: Path) -> None:
    """A figure without its origin cannot be repeated."""
    manifest = load_run(consistent_run).manifest
    assert (manifest["kind"], manifest["schema"], manifest["state"]) == ("run", 3, "complete")
    assert manifest["started_ns"] < manifest["ended_ns"]
    assert {"vehicle", "source", "model", "configuration", "seed", "host", "commit", "sampling"} <= manifest.keys()
    assert manifest["configuration"]["arrival_rate_hz"] == 200


def test_columns_of_a_later_version_are_kept_as_text(damaged_run: Path) -> None:
    """A log of next year's vehicle is still read."""
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, [f"{text[0]},t_teleported_ns", *(f"{line},7" for line in text[1:])])
    run = load_run(damaged_run)
    assert not run.problems
    assert set(run.frames["t_teleported_ns"]) == {"7"}


def test_a_run_without_frames_has_none(damaged_run: Path) -> None:
    """A vehicle may be stopped before its first frame is due: that is a run, not an error."""
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
def test_runs_are_told_apart_by_their_names(
    consistent_run: Path, tmp_path: Path, folders: list[str], names: list[str]
) -> None:
    """Vehicles of a study all write into folders that are called alike: a comparison of `run` with `run` says nothing."""
    for folder in folders:
        shutil.copytree(consistent_run, tmp_path / folder, dirs_exist_ok=True)
    assert [run.name for run in load_runs([tmp_path / folder for folder in folders])] == names
