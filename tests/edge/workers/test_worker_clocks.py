"""Clock offsets of worker processes."""

import pytest

from edge.workers.worker_clocks import WorkerClocks
from shared.clock import Exchange
from tests.support.waiting import beside

MS = 10**6
SECOND_NS = 10**9


def exchange(offset_ns: int, at_ms: float = 0.0, up_ms: float = 5.0, down_ms: float = 5.0) -> Exchange:
    """An exchange with a worker whose clock is ahead by `offset_ns`."""
    sent = round(at_ms * MS)
    there = sent + round(up_ms * MS)
    return Exchange(sent, there + offset_ns, there + offset_ns, there + round(down_ms * MS))


def test_each_process_has_its_own_offset() -> None:
    """Several workers share a subscription, and a restarted worker is a new process."""
    clocks = WorkerClocks()
    nodes = {"cloud/a/s1": SECOND_NS, "cloud/b/s1": -SECOND_NS, "cloud/a/s2": 7 * SECOND_NS}
    for node, offset_ns in nodes.items():
        clocks.add_probe(node, exchange(offset_ns))
    for node, offset_ns in nodes.items():
        assert clocks.offset(node, exchange(offset_ns, at_ms=100)).offset_ns == offset_ns


def test_without_probes_the_frames_give_the_offset() -> None:
    """Older workers, or some transports, do not support probes."""
    clocks = WorkerClocks()
    first = clocks.offset("cloud/w/s9", exchange(SECOND_NS, up_ms=40, down_ms=20))
    assert first.offset_ns == SECOND_NS + 10 * MS
    assert first.error_ns == pytest.approx(30 * MS, rel=0.01)
    clocks.offset("cloud/w/s9", exchange(SECOND_NS, at_ms=200))
    later = clocks.offset("cloud/w/s9", exchange(SECOND_NS, at_ms=400, up_ms=40, down_ms=20))
    assert later.error_ns < 6 * MS


def test_probes_take_precedence_over_large_frames() -> None:
    """A large frame is slow in one direction only, so half its round trip is a wrong estimate."""
    clocks = WorkerClocks()
    large = exchange(0, up_ms=200, down_ms=2)
    assert clocks.offset("cloud/w/s9", large).offset_ns == 99 * MS
    clocks.add_probe("cloud/w/s9", exchange(0, up_ms=2, down_ms=2))
    for _ in range(50):
        offset = clocks.offset("cloud/w/s9", large)
    assert abs(offset.offset_ns) < MS / 100
    assert offset.error_ns < 3 * MS


def test_a_clock_step_is_detected_at_once() -> None:
    """The row of the first frame after the step must be right although the next probe comes later."""
    clocks = WorkerClocks()
    clocks.add_probe("cloud/w/s9", exchange(0))
    for at_ms in (100, 200):
        offset = clocks.offset("cloud/w/s9", exchange(5 * SECOND_NS, at_ms))
        assert abs(offset.offset_ns - 5 * SECOND_NS) <= offset.error_ns


def test_the_number_of_clocks_is_bounded() -> None:
    """A hostile worker could claim any number of names; the least recently used ones are forgotten."""
    clocks = WorkerClocks()
    narrow, wide = exchange(0, up_ms=1, down_ms=1), exchange(0, up_ms=40, down_ms=40)
    for number in range(1000):
        clocks.add_probe(f"cloud/w/s{number}", narrow)
        clocks.offset(f"cloud/v/s{number}", narrow)
    known = [number for number in range(1000) if clocks.last_echo(f"cloud/w/s{number}").at_ns]
    assert known == list(range(488, 1000))
    assert clocks.offset("cloud/v/s488", wide).error_ns < 3 * MS
    assert clocks.offset("cloud/v/s487", wide).error_ns > 30 * MS


def test_the_clocks_are_thread_safe() -> None:
    """The receiver reads offsets while the prober adds probes."""
    clocks = WorkerClocks()
    clocks.add_probe("cloud/w/s9", exchange(SECOND_NS))
    wrong: list[int] = []

    def write() -> None:
        for number in range(300):
            clocks.add_probe("cloud/w/s9", exchange(SECOND_NS, at_ms=number))

    def read() -> None:
        for number in range(300):
            offset = clocks.offset("cloud/w/s9", exchange(SECOND_NS, at_ms=number))
            wrong.extend([number] * (abs(offset.offset_ns - SECOND_NS) > offset.error_ns))

    with beside(write, read, write, read):
        pass
    assert not wrong


def test_the_round_trip_is_that_of_recent_probes() -> None:
    """Vehicles prefer near workers; a single slow probe changes little."""
    clocks = WorkerClocks()
    assert clocks.last_echo("cloud/w/s9").round_trip_ns == 0
    clocks.add_probe("cloud/w/s9", exchange(SECOND_NS, up_ms=5, down_ms=3))
    assert clocks.last_echo("cloud/w/s9").round_trip_ns == 8 * MS
    clocks.add_probe("cloud/w/s9", exchange(SECOND_NS, at_ms=500, up_ms=85, down_ms=3))
    assert clocks.last_echo("cloud/w/s9").round_trip_ns == 18 * MS
    for number in range(50):
        clocks.add_probe("cloud/w/s9", exchange(SECOND_NS, at_ms=1000 + 500 * number, up_ms=40, down_ms=40))
    assert clocks.last_echo("cloud/w/s9").round_trip_ns == pytest.approx(80 * MS, rel=0.01)
