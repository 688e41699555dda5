"""Frames without a mask, and several vehicles with one worker."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shared import clock
from shared.inference.model import Model
from shared.runlog.latency_log import Outcome
from tests.pipeline.rig import WAIT_S, Rows, Vehicle, connect, count_outcomes, memory_bus, pictures, serving, worker
from tests.support.waiting import beside


def test_two_vehicles_share_a_worker_and_get_their_own_masks(mosquitto_url: str, model: Model, tmp_path: Path) -> None:
    """No answer reaches the wrong vehicle."""
    source = pictures(tmp_path, 60)
    with worker(mosquitto_url, model) as node:
        first = Vehicle(connect(mosquitto_url), source, tmp_path / "car-a")
        second = Vehicle(connect(mosquitto_url), source, tmp_path / "car-b")
        found: dict[str, Rows] = {}
        with beside(lambda: found.setdefault("car-a", first.play()), lambda: found.setdefault("car-b", second.play())):
            pass
        assert node.counts == {"answered": 120}
    for vehicle in (first, second):
        rows = found[vehicle.out.name]
        assert count_outcomes(rows) == {("answered", ""): 60}
        assert not vehicle.counts().ignored_answers


def test_frames_past_their_deadline_expire_at_both_nodes(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker does not infer them, and the vehicle does not use late answers."""
    infer, gate, held = model.infer, threading.Event(), threading.Event()
    now_ns, passed = clock.now_ns, threading.Event()
    monkeypatch.setattr(clock, "now_ns", lambda: now_ns() + (3600 * 10**9 if passed.is_set() else 0))

    def slowly(images: Any) -> Any:
        held.set()
        assert gate.wait(WAIT_S)
        return infer(images)

    monkeypatch.setattr(model, "infer", slowly)
    with memory_bus() as bus, serving(lambda _: bus, model) as node:
        vehicle = Vehicle(bus, pictures(tmp_path, 6), tmp_path / "car", window=6, deadline_ms=600_000.0, retry=False)

        def tick() -> None:
            if held.is_set() and vehicle.counts().in_flight == 6 and node.submission.admission.depth:
                passed.set()  # One frame is in the engine and at least one waits to be decoded: the clock jumps.
            if vehicle.counts().outcomes.get(Outcome.LOST):
                gate.set()

        rows = vehicle.play(tick)
        gate.set()
    assert {row["outcome"] for row in rows} <= {"expired", "lost"}
    assert node.counts["expired"] >= 1


def test_an_overloaded_worker_refuses_frames(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vehicle logs the worker's refusal."""
    infer, gate = model.infer, threading.Event()

    def slowly(images: Any) -> Any:
        assert gate.wait(WAIT_S)
        return infer(images)

    monkeypatch.setattr(model, "infer", slowly)
    with memory_bus() as bus, serving(lambda _: bus, model, max_frames=2):
        vehicle = Vehicle(bus, pictures(tmp_path, 20), tmp_path / "car", window=20)
        rows = vehicle.play(lambda: gate.set() if vehicle.counts().outcomes.get(Outcome.OVERLOADED) else None)
    outcomes = Counter(row["outcome"] for row in rows)
    assert outcomes["overloaded"] > 0
    assert outcomes["answered"] + outcomes["overloaded"] == 20
