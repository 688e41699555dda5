import pytest

from shared.mqtt.paho_client import LinkMonitor

S = 1_000_000_000
TIMEOUT_S = 15
ACCEPT_TIMEOUT_S = 5


class Link:
    """A monitored connection, and a clock that is checked twice a second, as the watchdog does."""

    def __init__(self) -> None:
        self.now_ns = 7 * S
        self.monitor = LinkMonitor(TIMEOUT_S, ACCEPT_TIMEOUT_S)
        self.monitor.opened(self.now_ns)
        self.monitor.accepted()

    def set_pending(self, count: int) -> None:
        """Sets the number of unacknowledged messages."""
        self.monitor.set_pending(count, self.now_ns)

    def time_to_death_s(self, longest_s: float = 100.0) -> float | None:
        """Advances the clock without receiving anything; returns when the link is dead, or None."""
        began_ns = self.now_ns
        while self.now_ns - began_ns < longest_s * S:
            self.now_ns += S // 2
            if self.monitor.is_dead(self.now_ns):
                return (self.now_ns - began_ns) / S
        return None


@pytest.mark.parametrize("idle_s", [0, 0.5, 5, 20])
def test_an_unacknowledged_message_finds_a_dead_link_after_the_timeout(idle_s: float) -> None:
    """TCP would take a quarter of an hour. Silence before the message does not count."""
    link = Link()
    assert link.time_to_death_s(idle_s) is None
    link.set_pending(1)
    assert link.time_to_death_s() == TIMEOUT_S


def test_an_idle_link_is_left_to_the_mqtt_keepalive() -> None:
    """Without unacknowledged messages, silence proves nothing."""
    assert Link().time_to_death_s() is None


def test_a_slow_link_is_not_dead_while_acknowledgements_arrive() -> None:
    """Each large message takes almost the whole timeout."""
    link = Link()
    assert link.time_to_death_s(7.0) is None
    link.set_pending(4)
    for pending in (3, 2, 1, 0):
        assert link.time_to_death_s(14.0) is None
        link.monitor.received(link.now_ns)
        link.set_pending(pending)


def test_parts_of_an_incoming_message_show_that_the_link_is_alive() -> None:
    """A worker behind a slow link receives bytes long before it has a whole message."""
    link = Link()
    link.set_pending(1)
    for _ in range(20):
        assert link.time_to_death_s(14.0) is None
        link.monitor.received(link.now_ns)


def test_the_timeout_restarts_after_the_process_was_suspended() -> None:
    """A process that was stopped, or a machine that slept, received nothing because it did not read."""
    link = Link()
    link.set_pending(1)
    assert link.time_to_death_s(10.0) is None
    link.now_ns += 3600 * S
    assert not link.monitor.is_dead(link.now_ns)
    assert link.time_to_death_s() == TIMEOUT_S


def test_a_connection_that_the_broker_does_not_accept_dies_sooner() -> None:
    """The system of a suspended broker accepts TCP connections that nobody answers."""
    link = Link()
    link.monitor.opened(link.now_ns)
    assert link.time_to_death_s() == ACCEPT_TIMEOUT_S


def test_a_closed_connection_is_not_dead() -> None:
    """There is nothing to abort while the client reconnects."""
    link = Link()
    link.set_pending(1)
    link.monitor.closed()
    assert link.time_to_death_s() is None
