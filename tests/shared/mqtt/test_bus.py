import queue
import threading

import pytest

from shared.mqtt.bus import Ack, Delivery, MemoryBus, Properties, matches

WAIT_S = 60.0


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("a/+/c", "a/b/c", True),
        ("a/+", "a/b/c", False),
        ("+/+", "a/b", True),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("#", "a/b", True),
        ("a/b", "A/b", False),
        ("$share/g/a/+", "a/b", True),
        ("$share/g/a/+", "b/b", False),
    ],
)
def test_filters_match_as_mqtt_says(topic_filter: str, topic: str, *, expected: bool) -> None:
    """The bus hands a message on by this; a broker has matched it before by its own (MQTT 5, section 4.7)."""
    assert matches(topic_filter, topic) is expected


def test_a_message_reaches_every_subscriber_with_its_properties() -> None:
    """The bus in memory stands in for a broker wherever the network is not the point."""
    with MemoryBus() as bus:
        first: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        second: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        bus.subscribe("a/+", 1, first.put)
        bus.subscribe("a/b", 1, second.put)
        bus.publish("a/b", b"x", qos=1, properties=Properties(correlation=b"7"))
        for received in (first.get(timeout=WAIT_S), second.get(timeout=WAIT_S)):
            assert (received.topic, received.payload, received.properties.correlation) == ("a/b", b"x", b"7")
            assert received.received_ns > 0


def test_what_is_retained_waits_for_later_subscribers() -> None:
    """A vehicle that starts after its worker must still find the model card."""
    with MemoryBus() as bus:
        bus.publish("status", b"old", qos=1, retained=True)
        bus.publish("status", b"new", qos=1, retained=True)
        received: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        bus.subscribe("status", 1, received.put)
        assert received.get(timeout=WAIT_S).payload == b"new"


def test_an_acknowledgement_tells_whether_anyone_listened() -> None:
    """MQTT 5's reason 0x10 is how a vehicle learns at once that there is no worker."""
    with MemoryBus() as bus:
        acks: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        bus.publish("a", b"", qos=1, acknowledged=acks.put)
        assert acks.get(timeout=WAIT_S) == Ack(accepted=True, no_subscriber=True)
        bus.subscribe("a", 1, lambda _: None)
        bus.publish("a", b"", qos=1, acknowledged=acks.put)
        assert acks.get(timeout=WAIT_S) == Ack(accepted=True, no_subscriber=False)


def test_nothing_comes_after_an_unsubscription_and_close_ends_the_thread() -> None:
    """A test that leaves a thread behind disturbs the next one."""
    received: list[Delivery] = []
    before = set(threading.enumerate())
    with MemoryBus() as bus:
        bus.subscribe("a", 1, received.append)
        bus.unsubscribe("a")
        bus.publish("a", b"", qos=1)
    assert not received
    assert set(threading.enumerate()) <= before
