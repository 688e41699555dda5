"""The publish/subscribe contract between nodes, and an in-memory implementation for tests and benches."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, Self

from shared import clock
from shared.compression import Buffer

_CACHE_SIZE = 1024  # Pairs of filter and topic whose match is cached.
_LONGEST_CACHED_TOPIC = 512  # Characters. MQTT allows 65,535, which would make the cache large.
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
    """The message that the broker publishes when a node disconnects without saying goodbye."""

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
        """Sends what is queued, as far as the link allows, and disconnects."""


class MemoryBus:
    """A broker and its clients in one process, with retained messages, wildcards and one delivery thread."""

    supports_shared_subscriptions = False
    is_connected = True
    max_payload_bytes = 1 << 28

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: list[tuple[str, Handler]] = []
        self._retained: dict[str, bytes] = {}
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.last_received_ns = clock.now_ns()
        self._thread = threading.Thread(target=self._deliver, name="memory-bus", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def payload_limit_reason(self) -> str:
        """See Bus."""
        return f"the broker takes {self.max_payload_bytes}"

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:  # noqa: ARG002 (memory loses no message)
        """See Bus."""
        with self._lock:
            self._subscriptions.append((topic_filter, handler))
            retained = [item for item in self._retained.items() if matches(topic_filter, item[0])]
        for topic, payload in retained:
            self._enqueue(handler, topic, payload, Properties(), retained=True)

    def unsubscribe(self, topic_filter: str) -> None:
        """See Bus."""
        with self._lock:
            self._subscriptions = [item for item in self._subscriptions if item[0] != topic_filter]

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int,  # noqa: ARG002 (memory loses no message)
        retained: bool = False,
        properties: Properties | None = None,
        acknowledged: AckHandler | None = None,
    ) -> None:
        """See Bus."""
        with self._lock:
            if retained and payload:
                self._retained[topic] = payload
            elif retained:
                self._retained.pop(topic, None)
            handlers = [handler for topic_filter, handler in self._subscriptions if matches(topic_filter, topic)]
        for handler in handlers:
            self._enqueue(handler, topic, payload, properties or Properties())
        if acknowledged:
            self._queue.put(lambda: acknowledged(Ack(accepted=True, no_subscriber=not handlers)))

    def close(self) -> None:
        """See Bus."""
        self._queue.put(None)
        self._thread.join()

    def _enqueue(
        self, handler: Handler, topic: str, payload: bytes, properties: Properties, *, retained: bool = False
    ) -> None:
        self._queue.put(lambda: handler(Delivery(topic, payload, clock.now_ns(), properties, retained)))

    def _deliver(self) -> None:
        while (step := self._queue.get()) is not None:
            self.last_received_ns = clock.now_ns()
            step()


def matches(topic_filter: str, topic: str) -> bool:
    """Returns whether a topic matches an MQTT filter, which may have `+`, `#` and a `$share/<group>/` prefix."""
    return (_matches if len(topic) <= _LONGEST_CACHED_TOPIC else _matches.__wrapped__)(topic_filter, topic)


@lru_cache(maxsize=_CACHE_SIZE)
def _matches(topic_filter: str, topic: str) -> bool:
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2]
    patterns, levels = topic_filter.split("/"), topic.split("/")
    for position, pattern in enumerate(patterns):
        if pattern == "#":
            return True
        if position >= len(levels) or pattern not in ("+", levels[position]):
            return False
    return len(patterns) == len(levels)
