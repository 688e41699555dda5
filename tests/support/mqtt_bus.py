"""Bus connections, inboxes and broker configurations for tests over a real MQTT broker."""

import os
import queue
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from ops.broker.broker import Broker
from shared.mqtt.bus import Ack, Delivery
from shared.mqtt.paho_bus import MqttBus
from shared.mqtt.paho_client import MqttSettings
from shared.network.address import Address

WAIT_S = 60.0


class Inbox:
    """Received messages; `put` is a message handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self.put = self._queue.put

    def next(self) -> Delivery:
        """Waits for the next message; fails after `WAIT_S`."""
        return self._queue.get(timeout=WAIT_S)


class Acks:
    """Received acknowledgements; `put` is an acknowledgement handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Ack] = queue.SimpleQueue()
        self.put = self._queue.put
        self.empty = self._queue.empty

    def next(self) -> Ack:
        """Waits for the next acknowledgement; fails after `WAIT_S`."""
        return self._queue.get(timeout=WAIT_S)


class Events:
    """Counts calls of `put`, with any arguments."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, *_: object) -> None:
        """Records one call."""
        self._queue.put(None)

    def wait(self) -> None:
        """Waits for the next call; fails after `WAIT_S`."""
        self._queue.get(timeout=WAIT_S)


def connect(url: str, settings: MqttSettings = MqttSettings(), **options: Any) -> MqttBus:  # noqa: B008 - frozen.
    """Connects with a client identifier of its own."""
    return MqttBus(Address.parse(url), f"test-{uuid4().hex[:12]}", settings, **options)


def subscribed_inbox(bus: MqttBus, topic: str) -> Inbox:
    """Returns an inbox whose subscription the broker has confirmed."""
    inbox = Inbox()
    acks = Acks()
    bus.subscribe(topic, 1, inbox.put)
    bus.publish(topic, b"ready", qos=1, acknowledged=acks.put)
    assert inbox.next().payload == b"ready"
    assert acks.next().accepted
    return inbox


@contextmanager
def suspended(broker: Broker) -> Iterator[None]:
    """Suspends the broker's process with SIGSTOP during the block."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def free_port() -> int:
    """Returns a TCP port of 127.0.0.1 that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def mosquitto_with(folder: Path, *lines: str, port: int = 0) -> Iterator[Broker]:
    """Runs Mosquitto with additional configuration lines, on a free port unless `port` is given."""
    config = folder / "mosquitto.conf"
    config.write_text("\n".join((f"listener {port or free_port()} 127.0.0.1", "user root", *lines, "")))
    with Broker.start(config=config) as broker:
        yield broker
