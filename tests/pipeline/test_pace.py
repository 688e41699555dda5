"""Replay of a source in complete runs."""

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cloud.models.model import Model
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import WAIT_S, Vehicle, count_outcomes, memory_bus, play, serving, worker


def test_a_slow_worker_gets_the_newest_frame(
    model: Model, pictures: Callable[[int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an open loop, frames that do not fit into the window are dropped, but never the newest."""
    count = 40
    infer, gate = model.infer, threading.Event()

    def slowly(images: Any) -> Any:
        assert gate.wait(WAIT_S)
        return infer(images)

    monkeypatch.setattr(model, "infer", slowly)
    with memory_bus() as bus, serving(lambda _: bus, model):
        vehicle = Vehicle(bus, pictures(count), tmp_path / "car", closed_loop=False, rate=1e6, window=1)
        rows = vehicle.play(lambda: gate.set() if vehicle.counts().read == count else None)
    assert len(rows) == count
    answered = [int(row["sequence"]) for row in rows if row["outcome"] == "answered"]
    assert count - 1 in answered
    assert len(answered) <= 2
    assert set(count_outcomes(rows)) == {("answered", ""), ("dropped", "window")}


def test_an_open_loop_keeps_the_times_of_the_source(
    model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """Due times come from the schedule, not from the pipeline."""
    with memory_bus() as bus, serving(lambda _: bus, model):
        rows = Vehicle(bus, pictures(10), tmp_path / "car", closed_loop=False, rate=20.0, window=8).play()
    due = [int(row["t_due_ns"]) for row in sorted(rows, key=lambda row: int(row["sequence"]))]
    assert [later - earlier for earlier, later in pairwise(due)] == [5_000_000] * 9


def test_a_loop_continues_index_and_time(model: Model, pictures: Callable[[int], Path], tmp_path: Path) -> None:
    """The second round must not overwrite the masks of the first."""
    with memory_bus() as bus, serving(lambda _: bus, model):
        rows = Vehicle(bus, pictures(10), tmp_path / "car", loop=True, frames=25).play()
    rows.sort(key=lambda row: int(row["sequence"]))
    assert count_outcomes(rows) == {("answered", ""): 25}
    assert [int(row["frame_index"]) for row in rows] == list(range(25))
    assert all(int(a["source_ns"]) < int(b["source_ns"]) for a, b in pairwise(rows))


def test_a_part_of_a_source_can_be_played(
    mosquitto_url: str, model: Model, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """The options are those of `ros2 bag play`."""
    out = tmp_path / "car-part"
    with worker(mosquitto_url, model):
        code, printed = play(
            pictures(20), mosquitto_url, out, closed_loop=True, start_offset_s=0.5, playback_duration_s=1.0, sinks=()
        )
    assert code == 0, printed
    assert read_manifest(out)["outcomes"]["answered"] == 10
    assert not (out / "masks").exists()
