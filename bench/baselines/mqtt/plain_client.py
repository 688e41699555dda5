"""The first system's MQTT (a reproduction): bare pictures by QoS 0 on two topics, paho and Mosquitto as they come."""

import threading
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from bench.load.playback import BenchError

FRAMES = "/vehicle_camera"
MASKS = "/segmented_images"
_SUBSCRIBE_S = 10.0


def connected(port: int, listens_to: str, on_picture: Callable[[paho.Client, bytes], None]) -> paho.Client:
    """A client with the library's defaults, subscribed, its network thread running; `on_picture` runs on that thread.

    Nagle's algorithm stays on, the protocol is 3.1.1, and no message tells what it answers.

    Raises:
        BenchError: the broker did not acknowledge the subscription.
    """
    subscribed = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda client, _, message: on_picture(client, bytes(message.payload))
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.subscribe(listens_to)
    client.loop_start()
    if not subscribed.wait(_SUBSCRIBE_S):  # What is published before it would be nobody's.
        raise BenchError(f"the broker on port {port} did not answer within {_SUBSCRIBE_S:g} s")
    return client


def broker_config(folder: Path, port: int) -> Path:
    """A configuration that leaves Mosquitto every default, but for where it listens and that it lets anybody in."""
    path = folder / "plain.conf"
    path.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n", encoding="ascii")
    return path
