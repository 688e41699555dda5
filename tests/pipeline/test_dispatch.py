"""Dispatch over Mosquitto to several workers: by load, in turn, and when workers drain or join."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cloud.node import CloudNode
from shared.messages import topics
from shared.runlog.latency_log import Outcome
from tests.pipeline.rig import Rows, Vehicle, connect, count_outcomes, null_model, pictures, worker

FAST_MS, SLOW_MS = 20.0, 200.0


class Workers:
    """Workers of one model, each with its own time for a frame."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self.model = f"instant-{uuid4().hex[:6]}"
        self._stack = stack

    def start(self, name: str, think_ms: float) -> CloudNode:
        """Starts a worker."""
        serves = worker(self.url, null_model(self.model, think_ms), name=f"{name}-{self.model}", group=topics.GROUP)
        return self._stack.enter_context(serves)

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


def play(vehicle: Vehicle, *steps: tuple[int, Callable[[], object]], until: int) -> Rows:
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
    rows = play(workers.vehicle(tmp_path), until=120)
    assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    shares = workers.shares(rows)
    assert shares["slow"] < 0.2 * shares.total()
    assert min(shares["fast"], shares["quick"]) > 0.2 * shares.total()
    assert Counter(row["dispatch"] for row in rows)["load"] > 0.8 * len(rows)


def test_the_group_deals_frames_in_turn(workers: Workers, tmp_path: Path) -> None:
    """`--dispatch group` does what earlier releases did."""
    for name, think_ms in (("fast", FAST_MS), ("slow", SLOW_MS)):
        workers.start(name, think_ms)
    rows = play(workers.vehicle(tmp_path, dispatch="group", window=2), until=20)
    shares = workers.shares(rows)
    assert abs(shares["fast"] - shares["slow"]) <= 3
    assert {row["dispatch"] for row in rows if row["outcome"] == Outcome.ANSWERED} == {"group"}


@pytest.mark.parametrize("other_ms", [FAST_MS, SLOW_MS])
def test_a_worker_that_drains_causes_no_drops_and_no_retries(workers: Workers, tmp_path: Path, other_ms: float) -> None:
    """A rolling update must not be visible in the log, whoever has dealt the frames."""
    draining = workers.start("draining", FAST_MS)
    workers.start("other", other_ms)
    vehicle = workers.vehicle(tmp_path, retry=False)  # A frame that is only slow would be sent twice as well.
    rows = play(vehicle, (40, draining.stop), until=80)
    assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    assert {row["attempts"] for row in rows if row["outcome"] == Outcome.ANSWERED} == {"1"}
    assert workers.shares(rows[-20:])["other"] > 0


def test_a_worker_that_joins_gets_frames(workers: Workers, tmp_path: Path) -> None:
    """It needs no restart of the vehicles."""
    workers.start("slow", SLOW_MS)
    vehicle = workers.vehicle(tmp_path)
    rows = play(vehicle, (10, lambda: workers.start("fast", FAST_MS)), until=80)
    shares = workers.shares(rows[-40:])
    assert shares["fast"] > shares["slow"]
    assert vehicle.counts().retried == 0
