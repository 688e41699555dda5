"""Threads and message handlers that publish at the same time, over a real broker."""

import threading
from collections.abc import Iterator

import pytest

from shared.mqtt.bus import Delivery
from shared.mqtt.paho_bus import MqttBus
from tests.support.mqtt_bus import WAIT_S, connect, subscribed_inbox

REQUESTS, REPLIES = "publishers/requests", "publishers/replies"


@pytest.fixture
def bus(mosquitto_url: str) -> Iterator[MqttBus]:
    """A connected bus."""
    with connect(mosquitto_url) as opened:
        yield opened


def test_a_handler_may_publish_with_qos_0_and_qos_1(bus: MqttBus) -> None:
    """A worker replies to a clock probe (QoS 0) and announces itself (QoS 1) in one handler, which once deadlocked."""
    replies = subscribed_inbox(bus, REPLIES)

    def handle(_: Delivery) -> None:
        bus.publish(REPLIES, b"echo", qos=0)
        bus.publish(REPLIES, b"status", qos=1)

    bus.subscribe(REQUESTS, 1, handle)
    for _ in range(50):
        bus.publish(REQUESTS, b"", qos=1)
    assert sorted(bytes(replies.next().payload) for _ in range(100)) == [b"echo"] * 50 + [b"status"] * 50


def test_a_handler_and_another_thread_publish_without_a_deadlock(bus: MqttBus) -> None:
    """A handler runs inside paho's locks, which another publishing thread takes in a different order."""
    replies = subscribed_inbox(bus, REPLIES)
    is_queued, has_published = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        bus.publish(REPLIES, b"echo", qos=0)
        is_queued.set()
        has_published.wait(WAIT_S)
        bus.publish(REPLIES, b"status", qos=1)

    bus.subscribe(REQUESTS, 1, handle)
    bus.publish(REQUESTS, b"", qos=1)
    assert is_queued.wait(WAIT_S)
    bus.publish(REPLIES, b"mask", qos=1)
    has_published.set()
    assert {bytes(replies.next().payload) for _ in range(3)} == {b"echo", b"status", b"mask"}


def test_large_messages_of_several_threads_are_not_interleaved(bus: MqttBus) -> None:
    """Each message is larger than the socket buffer, so it is written in several parts."""
    inbox = subscribed_inbox(bus, "publishers/large")
    payloads = {name: bytes([name]) * 3_000_000 for name in range(4)}

    def publish(name: int) -> None:
        for _ in range(5):
            bus.publish("publishers/large", payloads[name], qos=1)

    threads = [threading.Thread(target=publish, args=(name,)) for name in payloads]
    for thread in threads:
        thread.start()
    for _ in range(20):
        payload = inbox.next().payload
        assert payload == payloads[payload[0]]
    for thread in threads:
        thread.join(WAIT_S)


def test_a_handler_that_publishes_during_close_does_not_block_it(bus: MqttBus) -> None:
    """The DISCONNECT packet waits behind what the handler publishes."""
    is_closing, is_handling = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        is_handling.set()
        is_closing.wait(WAIT_S)
        bus.publish("publishers/last", b"words", qos=1)

    bus.subscribe(REQUESTS, 1, handle)
    bus.publish(REQUESTS, b"", qos=1)
    assert is_handling.wait(WAIT_S)
    closing = threading.Thread(target=bus.close)
    closing.start()
    is_closing.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
