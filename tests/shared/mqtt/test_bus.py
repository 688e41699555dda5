import threading

import pytest

from shared.mqtt.bus import Ack, Delivery, Properties
from shared.mqtt.packets import matches
from tests.support.memory_bus import MemoryBus
from tests.support.mqtt_bus import Acks, Inbox


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
def test_filters_match_topics(topic_filter: str, topic: str, *, expected: bool) -> None:
    """The bus chooses the handlers of a message by the rules of brokers (MQTT 5.0, section 4.7)."""
    assert matches(topic_filter, topic) is expected


def test_a_message_reaches_every_subscriber_with_its_properties() -> None:
    """The in-memory bus replaces a broker in tests that do not need the network."""
    with MemoryBus() as bus:
        first, second = Inbox(), Inbox()
        bus.subscribe("a/+", 1, first.put)
        bus.subscribe("a/b", 1, second.put)
        bus.publish("a/b", b"x", qos=1, properties=Properties(correlation=b"7"))
        for received in (first.next(), second.next()):
            assert (received.topic, received.payload, received.properties.correlation) == ("a/b", b"x", b"7")
            assert received.received_ns > 0


def test_a_retained_message_reaches_later_subscribers() -> None:
    """A vehicle that starts after its worker still receives the model card."""
    with MemoryBus() as bus:
        bus.publish("status", b"old", qos=1, retained=True)
        bus.publish("status", b"new", qos=1, retained=True)
        inbox = Inbox()
        bus.subscribe("status", 1, inbox.put)
        assert inbox.next().payload == b"new"


def test_an_acknowledgement_reports_missing_subscribers() -> None:
    """A vehicle learns from MQTT 5's reason code 0x10 at once that there is no worker."""
    with MemoryBus() as bus:
        acks = Acks()
        bus.publish("a", b"", qos=1, acknowledged=acks.put)
        assert acks.next() == Ack(accepted=True, no_subscriber=True)
        bus.subscribe("a", 1, lambda _: None)
        bus.publish("a", b"", qos=1, acknowledged=acks.put)
        assert acks.next() == Ack(accepted=True, no_subscriber=False)


def test_unsubscribe_ends_delivery_and_close_ends_the_thread() -> None:
    """A thread that outlives its test would disturb the next one."""
    received: list[Delivery] = []
    before = set(threading.enumerate())
    with MemoryBus() as bus:
        bus.subscribe("a", 1, received.append)
        bus.unsubscribe("a")
        bus.publish("a", b"", qos=1)
    assert not received
    assert set(threading.enumerate()) <= before
