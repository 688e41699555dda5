"""The publish/subscribe contract between nodes, and the bus of a worker without a broker."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from shared.compression import Buffer

LINK_JAMMED = "link_jammed"
"""`Ack.reason` of a publication that the bus refused because too many await the broker's acknowledgement."""


@dataclass(frozen=True, slots=True)
class Properties:
    """The MQTT 5 properties of a message; all None over MQTT 3.1.1."""

    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    expiry_s: int | None = None
    traceparent: str | None = None  # W3C Trace Context, sent as a user property.


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received message."""

    topic: str
    payload: Buffer  # May be a view of the received packet.
    received_ns: int  # Taken by the network thread before anything else.
    properties: Properties = field(default_factory=Properties)
    retained: bool = False  # Stored by the broker before this subscription; its sender may be gone.


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the broker publishes when a node's connection ends without a DISCONNECT."""

    topic: str
    payload: bytes


Handler = Callable[[Delivery], None]  # Runs on the network thread, so it must return quickly.
AckHandler = Callable[["Ack"], None]


@dataclass(frozen=True, slots=True)
class Ack:
    """The broker's acknowledgement of a publication."""

    accepted: bool
    no_subscriber: bool  # MQTT 5 reason 0x10; always False over MQTT 3.1.1.
    reason: str = ""  # The broker's reason for a refusal, such as "Not authorized".


class Bus(Protocol):
    """A connection that publishes and subscribes."""

    @property
    def supports_shared_subscriptions(self) -> bool:
        """True if `$share/…` filters divide messages among several workers (MQTT 5)."""

    @property
    def max_payload_bytes(self) -> int:
        """Largest payload that may be published; the broker closes the connection for a larger one."""

    @property
    def payload_limit_reason(self) -> str:
        """The origin and value of `max_payload_bytes`, such as "the broker takes 67108864"."""

    @property
    def is_connected(self) -> bool:
        """True while the connection to the broker is believed to be up."""

    @property
    def last_received_ns(self) -> int:
        """Time of the last byte from the broker, by `shared.clock`."""

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:
        """Calls `handler` for every message that matches, also after a reconnect."""

    def unsubscribe(self, topic_filter: str) -> None:
        """Removes a subscription."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int,
        retained: bool = False,
        properties: Properties | None = None,
        acknowledged: AckHandler | None = None,
    ) -> None:
        """Queues a message and returns; `acknowledged` is called with the broker's acknowledgement (QoS 1)."""

    def close(self) -> None:
        """Sends the queued messages, as far as the link allows, and disconnects."""


class NoBus:
    """The bus of a worker without a broker: drops published messages, and receives nothing."""

    supports_shared_subscriptions = False
    is_connected = True
    max_payload_bytes = 1 << 28
    payload_limit_reason = "there is no broker"
    last_received_ns = 0

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:
        """See Bus."""

    def unsubscribe(self, topic_filter: str) -> None:
        """See Bus."""

    def publish(self, *_: object, acknowledged: AckHandler | None = None, **_options: object) -> None:
        """See Bus."""
        if acknowledged:
            acknowledged(Ack(accepted=True, no_subscriber=True))

    def close(self) -> None:
        """See Bus."""
