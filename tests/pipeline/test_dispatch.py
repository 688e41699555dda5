"""Dispatch over Mosquitto to real workers: by load, and when workers are killed, drained or join."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from shared.runlog.latency_log import Outcome
from tests.pipeline.rig import HEIGHT, WIDTH, Rows, Vehicle, connect, count_outcomes, pictures

FAST_MS, SLOW_MS = 20.0, 200.0


class Workers:
    """Workers of one model, each with its own time for a frame, in processes of their own."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self.model = f"instant-{uuid4().hex[:6]}"
        self.processes: dict[str, NullWorkerProcess] = {}
        self._stack = stack

    def start(self, name: str, think_ms: float) -> None:
        """Starts a worker."""
        settings = NullWorkerSettings(f"{name}-{self.model}", self.model, HEIGHT, WIDTH, think_ms)
        self.processes[name] = self._stack.enter_context(NullWorkerProcess(self.url, settings))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to the process of a worker."""
        os.kill(self.processes[name].pid, number)

    def vehicle(self, tmp_path: Path, **settings: Any) -> Vehicle:
        """Returns a vehicle that plays until it is stopped."""
        out = tmp_path / f"car-{self.model}"
        defaults: dict[str, Any] = {"model": self.model, "window": 4, "loop": True}
        return Vehicle(connect(self.url), pictures(tmp_path, 20), out, **defaults | settings)

    def shares(self, rows: Sequence[dict[str, str]]) -> Counter[str]:
        """Returns the number of frames that each worker answered."""
        return Counter(row["worker"].partition("-")[0] for row in rows if row["outcome"] == Outcome.ANSWERED)


@pytest.fixture
def workers(mosquitto_url: str) -> Iterator[Workers]:
    """Returns workers that are not started yet."""
    with ExitStack() as stack:
        yield Workers(mosquitto_url, stack)


def play(vehicle: Vehicle, *steps: tuple[int, Callable[[], None]], until: int) -> Rows:
    """Plays until so many frames are answered; each step happens once, when so many are."""
    waiting = list(steps)

    def tick() -> None:
        while waiting and vehicle.answered() >= waiting[0][0]:
            waiting.pop(0)[1]()
        if not waiting and vehicle.answered() >= until:
            vehicle.stop()

    return vehicle.play(tick)


def test_a_slow_worker_gets_few_frames(workers: Workers, tmp_path: Path) -> None:
    """In turn, it would get every third frame, and the others would wait for it."""
    for name, think_ms in (("fast", FAST_MS), ("quick", FAST_MS), ("slow", SLOW_MS)):
        workers.start(name, think_ms)
    rows = play(workers.vehicle(tmp_path), until=200)
    assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    shares = workers.shares(rows)
    assert shares["slow"] < 0.2 * shares.total()
    assert min(shares["fast"], shares["quick"]) > 0.2 * shares.total()
    assert Counter(row["dispatch"] for row in rows)["load"] > 0.9 * len(rows)


def test_the_group_deals_frames_in_turn(workers: Workers, tmp_path: Path) -> None:
    """`--dispatch group` does what earlier releases did."""
    for name, think_ms in (("fast", FAST_MS), ("slow", SLOW_MS)):
        workers.start(name, think_ms)
    rows = play(workers.vehicle(tmp_path, dispatch="group", window=2), until=20)
    shares = workers.shares(rows)
    assert abs(shares["fast"] - shares["slow"]) <= 3
    assert {row["dispatch"] for row in rows if row["outcome"] == Outcome.ANSWERED} == {"group"}


def test_the_frames_of_a_killed_worker_are_answered_by_others(workers: Workers, tmp_path: Path) -> None:
    """The vehicle knows which frames it had, and sends them again as soon as the broker reports its end."""
    for name, think_ms in (("victim", FAST_MS), ("slow", SLOW_MS)):
        workers.start(name, think_ms)
    vehicle = workers.vehicle(tmp_path)
    rows = play(vehicle, (40, lambda: workers.signal("victim", signal.SIGKILL)), until=60)
    assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    twice = [row for row in rows if row["attempts"] == "2"]
    assert len(twice) == vehicle.counts().retried <= 4  # No more than were in flight.
    assert all(row["worker"].startswith("slow") for row in twice if row["outcome"] == Outcome.ANSWERED)


@pytest.mark.parametrize("other_ms", [FAST_MS, SLOW_MS])
def test_a_worker_that_drains_causes_no_drops_and_no_retries(workers: Workers, tmp_path: Path, other_ms: float) -> None:
    """A rolling update must not be visible in the log, whoever has dealt the frames."""
    workers.start("draining", FAST_MS)
    workers.start("other", other_ms)
    vehicle = workers.vehicle(tmp_path, retry=False)  # A frame that is only slow would be sent twice as well.
    rows = play(vehicle, (40, lambda: workers.signal("draining", signal.SIGTERM)), until=80)
    assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    assert {row["attempts"] for row in rows if row["outcome"] == Outcome.ANSWERED} == {"1"}
    assert workers.shares(rows[-20:])["other"] > 0


def test_a_worker_that_joins_gets_frames(workers: Workers, tmp_path: Path) -> None:
    """It needs no restart of the vehicles."""
    workers.start("slow", SLOW_MS)
    vehicle = workers.vehicle(tmp_path)
    rows = play(vehicle, (10, lambda: workers.start("fast", FAST_MS)), until=100)
    shares = workers.shares(rows[-40:])
    assert shares["fast"] > shares["slow"]
    assert vehicle.counts().retried == 0


def test_a_window_of_one_frame_uses_the_best_worker(workers: Workers, tmp_path: Path) -> None:
    """With a single frame in flight, no worker is ever busy."""
    for name, think_ms in (("fast", FAST_MS), ("slow", SLOW_MS)):
        workers.start(name, think_ms)
    rows = play(workers.vehicle(tmp_path, window=1), until=40)
    assert workers.shares(rows)["slow"] < 10
