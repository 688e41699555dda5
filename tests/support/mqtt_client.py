"""An MQTT client that can send anything, and waits for the broker's response."""

import queue
import ssl
import uuid
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from ops.broker.broker import Broker
from shared.messages.topics import PREFIX

NOT_AUTHORIZED = 0x87
TIMEOUT_S = 60.0


class Client:
    """An MQTT 5 client that waits for every acknowledgement; topics are without the protocol's prefix."""

    def __init__(self, broker: Broker, folder: Path, name: str, client_id: str = "") -> None:
        """`folder` and `name` identify the client's certificate."""
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2, client_id or f"test-{uuid.uuid4().hex[:12]}", protocol=paho.MQTTv5
        )
        self._paho.tls_set(
            str(folder / "ca.crt"),
            str(folder / f"{name}.crt"),
            str(folder / f"{name}.key"),
            tls_version=ssl.PROTOCOL_TLS_CLIENT,
        )
        self._codes: queue.Queue[int] = queue.Queue()
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._paho.on_connect = self._connected
        self._paho.on_publish = self._published
        self._paho.on_subscribe = self._subscribed
        self._paho.on_message = self._arrived
        self._paho.connect(broker.listener.host, broker.listener.port)
        self._paho.loop_start()

    def __enter__(self) -> Self:
        assert self._codes.get(timeout=TIMEOUT_S) == 0
        return self

    def __exit__(self, *_: object) -> None:
        self._paho.disconnect()
        self._paho.loop_stop()

    def publish(self, topic: str, payload: bytes = b"x", **properties: Any) -> int:
        """Publishes at QoS 1; returns the reason code of the acknowledgement. `properties` have paho's names."""
        packet_properties = Properties(PacketTypes.PUBLISH)
        for name, value in properties.items():
            setattr(packet_properties, name, value)
        self._paho.publish(f"{PREFIX}/{topic}", payload, qos=1, properties=packet_properties)
        return self._codes.get(timeout=TIMEOUT_S)

    def may_publish(self, topic: str) -> bool:
        """Publishes; returns True if the broker allows it."""
        return self.publish(topic) != NOT_AUTHORIZED

    def subscribe(self, topic_filter: str) -> None:
        """Subscribes and waits for the acknowledgement."""
        is_shared = topic_filter.startswith("$")
        self._paho.subscribe(topic_filter if is_shared else f"{PREFIX}/{topic_filter}", qos=1)
        self._codes.get(timeout=TIMEOUT_S)

    def next(self) -> tuple[str, bytes]:
        """Waits for the next message; returns its topic and payload."""
        return self.messages.get(timeout=TIMEOUT_S)

    def _connected(self, _client: paho.Client, _data: object, _flags: object, code: ReasonCode, _: object) -> None:
        self._codes.put(code.value)

    def _published(self, _client: paho.Client, _data: object, _id: int, code: ReasonCode, _: object) -> None:
        self._codes.put(code.value)

    def _subscribed(self, _client: paho.Client, _data: object, _id: int, codes: list[ReasonCode], _: object) -> None:
        self._codes.put(codes[0].value)

    def _arrived(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        self.messages.put((message.topic.removeprefix(f"{PREFIX}/"), bytes(message.payload)))
