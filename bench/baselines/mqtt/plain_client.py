"""Reproduction of the first system's MQTT: images with QoS 0 on two topics, paho and Mosquitto with default settings."""

import threading
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from ops.processes.child import BenchError

FRAMES = "/vehicle_camera"
MASKS = "/segmented_images"
_SUBSCRIBE_TIMEOUT_S = 10.0


def connect(port: int, topic: str, on_image: Callable[[paho.Client, bytes], None]) -> paho.Client:
    """Returns a subscribed client with the library's defaults; its network thread calls `on_image`.

    Nagle's algorithm is on, the protocol is 3.1.1, and a reply does not contain the frame that it belongs to.

    Raises:
        BenchError: the broker did not acknowledge the subscription.
    """
    subscribed = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda client, _, message: on_image(client, bytes(message.payload))
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.subscribe(topic)
    client.loop_start()
    if not subscribed.wait(_SUBSCRIBE_TIMEOUT_S):  # Messages published before the subscription would be lost.
        raise BenchError(
            f"the broker on port {port} did not acknowledge the subscription within {_SUBSCRIBE_TIMEOUT_S:g} s"
        )
    return client


def write_broker_config(folder: Path, port: int) -> Path:
    """Writes a Mosquitto configuration with default settings, except for its listener and anonymous access."""
    path = folder / "plain.conf"
    path.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n", encoding="ascii")
    return path
