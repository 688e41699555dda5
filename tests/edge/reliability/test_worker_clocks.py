import threading

import pytest

from edge.reliability.worker_clocks import WorkerClocks
from shared.clock import Exchange

MS = 10**6
SECOND_NS = 10**9


def exchange(offset_ns: int, at_ms: float = 0.0, up_ms: float = 5.0, down_ms: float = 5.0) -> Exchange:
    """With a clock that is so far ahead."""
    sent = round(at_ms * MS)
    there = sent + round(up_ms * MS)
    return Exchange(sent, there + offset_ns, there + offset_ns, there + round(down_ms * MS))


def test_each_process_has_its_own_clock() -> None:
    """Several workers stand behind one subscription; and one that is started again begins anew."""
    clocks = WorkerClocks()
    nodes = {"cloud/a/s1": SECOND_NS, "cloud/b/s1": -SECOND_NS, "cloud/a/s2": 7 * SECOND_NS}
    for node, offset_ns in nodes.items():
        clocks.probed(node, exchange(offset_ns))
    for node, offset_ns in nodes.items():
        assert clocks.offset(node, exchange(offset_ns, at_ms=100)).offset_ns == offset_ns


def test_a_worker_that_answers_no_probes_is_known_by_its_frames() -> None:
    """An older one, or one behind a transport without a channel for them."""
    clocks = WorkerClocks()
    first = clocks.offset("cloud/w/s9", exchange(SECOND_NS, up_ms=40, down_ms=20))
    assert first.offset_ns == SECOND_NS + 10 * MS
    assert first.error_ns == pytest.approx(30 * MS, rel=0.01)
    clocks.offset("cloud/w/s9", exchange(SECOND_NS, at_ms=200))
    later = clocks.offset("cloud/w/s9", exchange(SECOND_NS, at_ms=400, up_ms=40, down_ms=20))
    assert later.error_ns < 6 * MS


def test_probes_are_believed_rather_than_large_frames() -> None:
    """A frame of megabytes takes long one way only: halving its crossing would be wrong by half of that."""
    clocks = WorkerClocks()
    large = exchange(0, up_ms=200, down_ms=2)
    assert clocks.offset("cloud/w/s9", large).offset_ns == 99 * MS
    clocks.probed("cloud/w/s9", exchange(0, up_ms=2, down_ms=2))
    for _ in range(50):
        offset = clocks.offset("cloud/w/s9", large)
    assert abs(offset.offset_ns) < MS / 100
    assert offset.error_ns < 3 * MS


def test_a_clock_that_was_changed_is_known_anew_at_once() -> None:
    """The row that shows it must not lie because the next probe is half a second away."""
    clocks = WorkerClocks()
    clocks.probed("cloud/w/s9", exchange(0))
    for at_ms in (100, 200):
        offset = clocks.offset("cloud/w/s9", exchange(5 * SECOND_NS, at_ms))
        assert abs(offset.offset_ns - 5 * SECOND_NS) <= offset.error_ns


def test_so_many_clocks_are_remembered_and_no_more() -> None:
    """A worker that lies about its name could claim any number of them."""
    clocks = WorkerClocks()
    for number in range(1000):
        clocks.probed(f"cloud/w/s{number}", exchange(0))
        clocks.offset(f"cloud/v/s{number}", exchange(0))
    assert len(clocks._probed) == len(clocks._unprobed) == 512
    assert "cloud/w/s999" in clocks._probed


def test_clocks_are_asked_and_told_at_the_same_time() -> None:
    """The receiver asks while the prober tells."""
    clocks = WorkerClocks()
    clocks.probed("cloud/w/s9", exchange(SECOND_NS))
    wrong: list[int] = []

    def tell() -> None:
        for number in range(300):
            clocks.probed("cloud/w/s9", exchange(SECOND_NS, at_ms=number))

    def ask() -> None:
        for number in range(300):
            offset = clocks.offset("cloud/w/s9", exchange(SECOND_NS, at_ms=number))
            wrong.extend([number] * (abs(offset.offset_ns - SECOND_NS) > offset.error_ns))

    threads = [threading.Thread(target=work) for work in (tell, ask, tell, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
