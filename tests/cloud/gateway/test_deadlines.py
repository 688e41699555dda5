"""Deadlines of calls."""

import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from cloud.gateway.deadlines import Deadlines

WAIT_S = 20.0


@dataclass
class Call:
    """One that tells when it is ended."""

    until_s: float | None
    ended: "queue.SimpleQueue[float | None]" = field(default_factory=queue.SimpleQueue)

    def expire(self) -> None:
        """See Ending."""
        self.ended.put(self.until_s)


@pytest.fixture(name="deadlines")
def _deadlines() -> Iterator[Deadlines]:
    deadlines = Deadlines("test deadlines")
    deadlines.start()
    yield deadlines
    deadlines.close()


def test_the_late_are_ended_in_their_order(deadlines: Deadlines) -> None:
    """A short one that comes behind a long one as well."""
    now_s = time.monotonic()
    ended: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    calls = [Call(now_s + 1e9, ended), Call(now_s + 0.1, ended), Call(now_s + 0.05, ended), Call(now_s - 1, ended)]
    for call in calls:
        deadlines.add(call)
    assert [ended.get(timeout=WAIT_S) for _ in range(3)] == [calls[3].until_s, calls[2].until_s, calls[1].until_s]


def test_what_is_over_is_not_ended_and_leaves_nothing_behind(deadlines: Deadlines) -> None:
    """A worker answers millions of calls long before their deadlines."""
    ended: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    soon_s = time.monotonic() + 0.3
    for number in range(1_000):
        deadlines.remove(deadlines.add(Call(soon_s + number, ended)))
    deadlines.add(Call(soon_s, ended))
    assert ended.get(timeout=WAIT_S) == soon_s
    assert ended.empty()
    assert len(deadlines._heap) < 100
