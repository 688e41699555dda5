from paho.mqtt.client import MQTTMessageInfo

from shared.mqtt.bus import Ack
from shared.mqtt.paho_bus import InflightMessages
from shared.mqtt.paho_client import MAX_INFLIGHT_BYTES

ACCEPTED = Ack(accepted=True, no_subscriber=False)


class QosZeroMessage(MQTTMessageInfo):
    """A QoS 0 publication in the send queue."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(1)
        self.is_written = False
        self._error = error

    def is_published(self) -> bool:
        """See MQTTMessageInfo."""
        if self._error:
            raise self._error
        return self.is_written


def _inflight(limit: int = 2) -> tuple[InflightMessages, list[int]]:
    counts: list[int] = []
    return InflightMessages(limit, counts.append), counts


def _on_ack(_: Ack) -> None:
    """A callback to compare with."""


def test_the_number_of_messages_is_limited_and_an_acknowledgement_frees_a_place() -> None:
    """A suspended broker must not cost unlimited memory. Retained messages are rare and always pass."""
    inflight, counts = _inflight(limit=2)
    for mid in (1, 2):
        assert inflight.admit(100, always=False)
        assert inflight.add(mid, _on_ack, 100) is None
    assert not inflight.admit(100, always=False)
    assert inflight.admit(100, always=True)
    inflight.add(3, _on_ack, 100)
    for mid in (1, 3):
        assert inflight.acknowledge(mid, ACCEPTED) is _on_ack
    assert inflight.admit(100, always=False)
    assert counts == [1, 2, 3, 2, 1]


def test_the_bytes_are_limited_but_a_single_message_is_always_admitted() -> None:
    """Many small messages and a few large ones are limited by one rule."""
    inflight, _ = _inflight(limit=100)
    assert inflight.admit(MAX_INFLIGHT_BYTES + 1, always=False)
    inflight.add(1, _on_ack, MAX_INFLIGHT_BYTES + 1)
    assert not inflight.admit(1, always=False)
    inflight.acknowledge(1, ACCEPTED)
    assert inflight.admit(1, always=False)


def test_an_acknowledgement_that_arrives_before_add_is_found() -> None:
    """The network thread may be faster than the publishing thread; the message must not stay counted."""
    inflight, counts = _inflight()
    assert inflight.admit(10, always=False)
    assert inflight.acknowledge(7, ACCEPTED) is None
    assert inflight.add(7, _on_ack, 10) == ACCEPTED
    assert len(inflight) == 0
    assert counts == []


def test_subscriptions_count_for_their_connection_only() -> None:
    """A new connection sends them again; one that stayed counted would make every link look dead."""
    inflight, counts = _inflight()
    inflight.subscribing()
    inflight.reconnected()
    inflight.subscribing()
    inflight.subscribed()
    inflight.subscribed()
    assert counts == [1, 0, 1, 0, 0]


def test_qos_0_messages_are_limited_by_what_is_still_unsent() -> None:
    """QoS 0 has no acknowledgements, and a half-open link would let the send queue grow without limit."""
    inflight, _ = _inflight()
    first, second = QosZeroMessage(), QosZeroMessage()
    for message in (first, second):
        assert inflight.admit_qos_0(MAX_INFLIGHT_BYTES // 2)
        inflight.add_qos_0(message, MAX_INFLIGHT_BYTES // 2)
    assert not inflight.admit_qos_0(1)
    first.is_written = True
    assert inflight.admit_qos_0(1)


def test_qos_0_messages_lost_with_their_connection_free_their_place() -> None:
    """paho raises an error for them, which once ended a vehicle after a broker restart."""
    inflight, _ = _inflight()
    lost = QosZeroMessage(RuntimeError("Message publish failed: The client is not currently connected."))
    inflight.add_qos_0(lost, MAX_INFLIGHT_BYTES)
    assert inflight.admit_qos_0(1)
