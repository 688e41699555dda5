from shared.mqtt.bus import Ack
from shared.mqtt.inflight import MAX_INFLIGHT_BYTES, InflightMessages

TAKEN = Ack(accepted=True, no_subscriber=False)


class Message:
    """A publication of QoS 0."""

    def __init__(self) -> None:
        self.is_written = False

    def is_published(self) -> bool:
        """See Written."""
        return self.is_written


def _waiting(most: int = 2) -> tuple[InflightMessages, list[int]]:
    counts: list[int] = []
    return InflightMessages(most, counts.append), counts


def _ignore(_: Ack) -> None:
    """Nobody waits for it."""


def test_no_more_wait_than_may_and_each_acknowledgement_makes_room() -> None:
    """While a broker stands still frames fall due all the time: each would take memory until it goes on."""
    waiting, counts = _waiting(most=2)
    for number in (1, 2):
        assert waiting.admit(100, always=False)
        assert waiting.add(number, _ignore, 100) is None
    assert not waiting.admit(100, always=False)
    assert waiting.admit(100, always=True)  # What is retained tells who is there; there is little of it.
    waiting.add(3, _ignore, 100)
    for number in (1, 3):
        assert waiting.acknowledge(number, TAKEN) is _ignore
    assert waiting.admit(100, always=False)
    assert counts == [1, 2, 3, 2, 1]


def test_their_bytes_are_bounded_but_one_may_always_wait() -> None:
    """A thousand small messages and a few of many megabytes are bounded by one rule."""
    waiting, _ = _waiting(most=100)
    assert waiting.admit(MAX_INFLIGHT_BYTES + 1, always=False)
    waiting.add(1, _ignore, MAX_INFLIGHT_BYTES + 1)
    assert not waiting.admit(1, always=False)
    waiting.acknowledge(1, TAKEN)
    assert waiting.admit(1, always=False)


def test_an_acknowledgement_that_overtakes_its_call_is_found() -> None:
    """The network thread may be faster than the one that publishes; it must count neither twice nor for ever."""
    waiting, counts = _waiting()
    assert waiting.admit(10, always=False)
    assert waiting.acknowledge(7, TAKEN) is None
    assert waiting.add(7, _ignore, 10) == TAKEN
    assert len(waiting) == 0
    assert counts == []


def test_subscriptions_wait_for_this_connection_alone() -> None:
    """Those of a connection that broke are sent again over the next; one left over would make every link look dead."""
    waiting, counts = _waiting()
    waiting.subscribing()
    waiting.reconnected()
    waiting.subscribing()
    waiting.subscribed()
    waiting.subscribed()
    assert counts == [1, 0, 1, 0, 0]


def test_what_is_not_acknowledged_at_all_is_bounded_by_what_is_still_to_be_written() -> None:
    """At QoS 0 nobody says that it came; a half-open link takes none of it, and the client keeps it all."""
    waiting, _ = _waiting()
    first, second = Message(), Message()
    for message in (first, second):
        assert waiting.has_room_to_write(MAX_INFLIGHT_BYTES // 2)
        waiting.write(message, MAX_INFLIGHT_BYTES // 2)
    assert not waiting.has_room_to_write(1)
    first.is_written = True
    assert waiting.has_room_to_write(1)


class Lost:
    """A publication of QoS 0 that went with its connection."""

    def is_published(self) -> bool:
        """See Written."""
        raise RuntimeError("Message publish failed: The client is not currently connected.")


def test_what_went_with_its_connection_takes_no_room_and_fails_nobody() -> None:
    """A probe that found no connection ended the vehicle at the next one: the broker had restarted meanwhile."""
    waiting, _ = _waiting()
    waiting.write(Lost(), MAX_INFLIGHT_BYTES)
    assert waiting.has_room_to_write(1)
