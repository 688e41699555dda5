"""Replay of a source in complete runs."""

import threading
from collections.abc import Callable
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
