import pytest

from shared.mqtt.keepalive import LinkMonitor

S = 1_000_000_000
TIMEOUT_S = 15


class Link:
    """A watch, and a clock that is looked at twice a second as the bus does."""

    def __init__(self) -> None:
        self.now_ns = 7 * S
        self.watch = LinkMonitor(TIMEOUT_S, connect_patience_s=5)
        self.watch.opened(self.now_ns)
        self.watch.accepted()

    def dies_after_s(self, longest_s: float = 100.0) -> float | None:
        """Seconds until the watch calls the link dead though nothing more comes; None: it does not."""
        began_ns = self.now_ns
        while self.now_ns - began_ns < longest_s * S:
            self.now_ns += S // 2
            if self.watch.is_dead(self.now_ns):
                return (self.now_ns - began_ns) / S
        return None


def test_what_waits_for_its_acknowledgement_finds_a_dead_link_within_the_timeout() -> None:
    """A vehicle sends frames all the time: it must know long before TCP gives up, which takes a quarter of an hour."""
    link = Link()
    link.watch.awaits(1, link.now_ns)
    assert link.dies_after_s() == TIMEOUT_S


def test_an_idle_link_is_left_to_the_keepalive() -> None:
    """Nothing that was sent waits for an answer."""
    assert Link().dies_after_s() is None


@pytest.mark.parametrize("idle_s", [0.5, 5, 20])
def test_what_is_sent_after_a_pause_has_the_whole_timeout(idle_s: float) -> None:
    """Silence before it proves nothing."""
    link = Link()
    assert link.dies_after_s(idle_s) is None
    link.watch.awaits(1, link.now_ns)
    assert link.dies_after_s() == TIMEOUT_S


def test_a_large_message_that_crawls_is_no_silence() -> None:
    """Its acknowledgement takes most of the timeout, and a ping would wait behind it: it is on its way all the same."""
    link = Link()
    assert link.dies_after_s(7.0) is None
    link.watch.awaits(4, link.now_ns)
    for left in (3, 2, 1, 0):
        assert link.dies_after_s(14.0) is None
        link.watch.heard(link.now_ns)
        link.watch.awaits(left, link.now_ns)


def test_a_message_that_comes_in_piece_by_piece_is_no_silence() -> None:
    """A worker behind a slow link hears bytes, but for a long time no whole message."""
    link = Link()
    link.watch.awaits(1, link.now_ns)
    for _ in range(20):
        assert link.dies_after_s(14.0) is None
        link.watch.heard(link.now_ns)


def test_what_was_stopped_begins_anew() -> None:
    """A process that was stopped, or a machine that slept, heard nothing because it did not listen."""
    link = Link()
    link.watch.awaits(1, link.now_ns)
    assert link.dies_after_s(10.0) is None
    link.now_ns += 3600 * S
    assert not link.watch.is_dead(link.now_ns)
    assert link.dies_after_s() == TIMEOUT_S


def test_a_broker_that_never_accepts_is_given_up_soon() -> None:
    """One that is stopped takes connections, by its system, and answers none."""
    link = Link()
    link.watch.opened(link.now_ns)
    assert link.dies_after_s() == 5


def test_no_connection_is_no_dead_one() -> None:
    """While it is being made anew there is nothing to cut."""
    link = Link()
    link.watch.awaits(1, link.now_ns)
    link.watch.closed()
    assert link.dies_after_s() is None
