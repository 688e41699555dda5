"""Threads that publish, and send what they publish themselves, over a real broker."""

import queue
import threading
from collections.abc import Iterator

import pytest

from shared.mqtt.bus import Delivery
from shared.mqtt.paho_bus import MqttBus
from shared.network.broker_options import BrokerOptions

WAIT_S = 60


@pytest.fixture
def bus(mosquitto_url: str) -> Iterator[MqttBus]:
    """A connection whose network thread runs."""
    with BrokerOptions(mosquitto_url).open("publisher", None) as opened:
        assert isinstance(opened, MqttBus)
        yield opened


def said_by(bus: MqttBus, topic: str) -> "queue.SimpleQueue[Delivery]":
    """What comes by a topic; the subscription is there."""
    came: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    bus.subscribe(topic, 1, came.put)
    bus.publish(topic, b"ready", qos=1)
    assert came.get(timeout=WAIT_S).payload == b"ready"
    return came


def test_who_is_being_told_may_publish_by_either_quality(bus: MqttBus) -> None:
    """A worker echoes a probe (QoS 0) and announces itself (QoS 1) in one handler: it waited for itself for ever."""
    answers = said_by(bus, "publishers/answers")

    def handle(_: Delivery) -> None:
        bus.publish("publishers/answers", b"echo", qos=0)
        bus.publish("publishers/answers", b"status", qos=1)

    bus.subscribe("publishers/asked", 1, handle)
    for _ in range(50):
        bus.publish("publishers/asked", b"", qos=1)
    assert sorted(bytes(answers.get(timeout=WAIT_S).payload) for _ in range(100)) == [b"echo"] * 50 + [b"status"] * 50


def test_a_handler_and_another_thread_do_not_wait_for_each_other(bus: MqttBus) -> None:
    """The one holds what paho holds as it calls, the other what it holds as it is called."""
    answers = said_by(bus, "publishers/answers")
    is_queued, has_published = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        bus.publish("publishers/answers", b"echo", qos=0)
        is_queued.set()
        has_published.wait(WAIT_S)
        bus.publish("publishers/answers", b"status", qos=1)

    bus.subscribe("publishers/asked", 1, handle)
    bus.publish("publishers/asked", b"", qos=1)
    assert is_queued.wait(WAIT_S)
    bus.publish("publishers/answers", b"mask", qos=1)
    has_published.set()
    assert {bytes(answers.get(timeout=WAIT_S).payload) for _ in range(3)} == {b"echo", b"status", b"mask"}


def test_publications_of_several_threads_come_whole(bus: MqttBus) -> None:
    """Each larger than what the network takes at a time: the rest of one must stay behind its beginning."""
    answers = said_by(bus, "publishers/large")
    payloads = {name: bytes([name]) * 3_000_000 for name in range(4)}

    def publish(name: int) -> None:
        for _ in range(5):
            bus.publish("publishers/large", payloads[name], qos=1)

    threads = [threading.Thread(target=publish, args=(name,)) for name in payloads]
    for thread in threads:
        thread.start()
    for _ in range(20):
        payload = answers.get(timeout=WAIT_S).payload
        assert payload == payloads[payload[0]]
    for thread in threads:
        thread.join(WAIT_S)


def test_who_publishes_while_the_bus_closes_keeps_it_from_nothing(mosquitto_url: str) -> None:
    """The farewell waits in the queue behind which a handler publishes."""
    is_closing, is_told = threading.Event(), threading.Event()
    with BrokerOptions(mosquitto_url).open("closing", None) as bus:

        def handle(_: Delivery) -> None:
            is_told.set()
            is_closing.wait(WAIT_S)
            bus.publish("publishers/last", b"words", qos=1)

        bus.subscribe("publishers/asked", 1, handle)
        bus.publish("publishers/asked", b"", qos=1)
        assert is_told.wait(WAIT_S)
        closing = threading.Thread(target=bus.close)
        closing.start()
        is_closing.set()
        closing.join(WAIT_S)
        assert not closing.is_alive()
