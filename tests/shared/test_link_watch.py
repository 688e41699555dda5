import pytest

from shared.link_watch import LinkWatch

S = 1_000_000_000
TIMEOUT_S = 15


class Link:
    """A watch, and a clock that is looked at twice a second as the bus does."""

    def __init__(self) -> None:
        self.now_ns = 7 * S
        self.watch = LinkWatch(TIMEOUT_S, connect_patience_s=5)
        self.watch.opened(self.now_ns)
        self.watch.accepted(TIMEOUT_S)

    def dies_after_s(self, longest_s: float = 100.0, *, pings: bool = True) -> float | None:
        """Seconds until the watch calls the link dead though nothing more comes; None: it does not."""
        began_ns = self.now_ns
        while self.now_ns - began_ns < longest_s * S:
            self.now_ns += S // 2
            if pings:
                self.watch.wants_ping(self.now_ns)
            if self.watch.is_dead(self.now_ns):
                return (self.now_ns - began_ns) / S
        return None


def test_what_waits_for_its_acknowledgement_finds_a_dead_link_within_the_timeout() -> None:
    """A vehicle sends frames all the time: it must know long before TCP gives up, which takes a quarter of an hour."""
    link = Link()
    link.watch.awaits(1, link.now_ns)
    assert link.dies_after_s() == TIMEOUT_S


def test_an_idle_link_is_found_dead_by_its_ping() -> None:
    """A worker that waits for frames would wait for ever."""
    assert Link().dies_after_s() == 1.5 * TIMEOUT_S


@pytest.mark.parametrize("idle_s", [0.5, 5, 7, 7.5, 8, 14.5, 20, 22])
def test_whenever_something_is_sent_a_dead_link_is_found_as_soon(idle_s: float) -> None:
    """What is sent late must not lengthen the patience with a ping that was sent before it."""
    link = Link()
    assert link.dies_after_s(idle_s) is None
    link.watch.awaits(1, link.now_ns)
    more_s = link.dies_after_s()
    assert more_s is not None
    assert idle_s + more_s <= 1.5 * TIMEOUT_S + 0.5


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


def test_it_pings_twice_a_timeout_and_only_who_has_accepted() -> None:
    """The broker, too, drops a client that it does not hear."""
    link = Link()
    pings = 0
    for _ in range(200):
        link.now_ns += S // 2
        link.watch.heard(link.now_ns)
        pings += link.watch.wants_ping(link.now_ns)
    assert pings == 100 * 2 // TIMEOUT_S
    link.watch.opened(link.now_ns)
    assert not link.watch.wants_ping(link.now_ns + 100 * S)


def test_a_broker_that_wants_to_hear_more_often_is_told_more_often() -> None:
    """It would take a vehicle that stands at a traffic light for a dead one."""
    link = Link()
    link.watch.accepted(keepalive_s=4)
    assert not link.watch.wants_ping(link.now_ns + 2 * S - 1)
    assert link.watch.wants_ping(link.now_ns + 2 * S)
