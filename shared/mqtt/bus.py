"""What carries messages between nodes, and a carrier in memory for whatever is not about the network."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, Self

from shared import clock
from shared.encoding.compression import Buffer

_REMEMBERED = 1024  # Topics that were asked for lately, with a filter each: cameras keep to theirs.
_LONGEST_REMEMBERED = 512  # Characters; MQTT allows 65,535.
LINK_JAMMED = "link_jammed"
"""Why the bus itself refuses a publication: too much waits for the broker's acknowledgement already."""


@dataclass(frozen=True, slots=True)
class Properties:
    """What MQTT 5 says beside a payload; absent where the broker speaks 3.1.1."""

    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    expiry_s: int | None = None
    traceparent: str | None = None  # W3C Trace Context: ties what tracers see of one frame together.


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as it came in."""

    topic: str
    payload: Buffer  # Of a large one a view of the packet that it came in.
    received_ns: int  # Stamped first of all, by the network thread.
    properties: Properties = field(default_factory=Properties)
    retained: bool = False  # The broker had kept it: it was sent before we subscribed, by someone who may be gone.


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker says for a node that went without a word."""

    topic: str
    payload: bytes


Handler = Callable[[Delivery], None]  # Runs on the network thread: stamp, enqueue, return.
AckHandler = Callable[["Ack"], None]


@dataclass(frozen=True, slots=True)
class Ack:
    """What the broker said to a publication: QoS 1 tells that it took the message, not that anyone answered it."""

    accepted: bool
    no_subscriber: bool  # MQTT 5's reason 0x10; a 3.1.1 broker cannot say.
    reason: str = ""  # Why it was not accepted: the broker's words, such as "Not authorized".


class Bus(Protocol):
    """Publish and subscribe."""

    @property
    def supports_shared_subscriptions(self) -> bool:
        """Whether several workers can divide one subscription among them (MQTT 5)."""

    @property
    def max_payload_bytes(self) -> int:
        """Bytes; what is larger must not be published: the broker would cut the connection."""

    @property
    def payload_limit_reason(self) -> str:
        """Whose bound that is, and the bound: "the broker takes 67108864"."""

    @property
    def is_connected(self) -> bool:
        """Whether the connection to the broker stands, as far as is known."""

    @property
    def last_received_ns(self) -> int:
        """When anything last came from the broker, by `shared.clock`: a message, an acknowledgement, a part of one."""

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:
        """Have `handler` called for every message that matches; survives reconnects."""

    def unsubscribe(self, topic_filter: str) -> None:
        """Take a subscription back."""

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
        """Hand a message over; returns before it is sent."""

    def close(self) -> None:
        """Send what is queued, as far as the link allows, and leave."""


class MemoryBus:
    """A broker and its clients in one process: retained messages, wildcards, one delivering thread."""

    supports_shared_subscriptions = False
    is_connected = True
    max_payload_bytes = 1 << 28

    @property
    def payload_limit_reason(self) -> str:
        """See Bus."""
        return f"the broker takes {self.max_payload_bytes}"

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

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:  # noqa: ARG002 (memory loses nothing)
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
        qos: int,  # noqa: ARG002 (memory loses nothing)
        retained: bool = False,
        properties: Properties | None = None,
        acknowledged: AckHandler | None = None,
    ) -> None:
        """See Bus."""
        with self._lock:
            if retained:
                self._retained[topic] = payload
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
    """Whether an MQTT filter with `+`, `#` or a `$share/<group>/` prefix takes a topic in."""
    return (_matches if len(topic) <= _LONGEST_REMEMBERED else _matches.__wrapped__)(topic_filter, topic)


@lru_cache(maxsize=_REMEMBERED)
def _matches(topic_filter: str, topic: str) -> bool:
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2]
    wanted, given = topic_filter.split("/"), topic.split("/")
    for place, part in enumerate(wanted):
        if part == "#":
            return True
        if place >= len(given) or part not in ("+", given[place]):
            return False
    return len(wanted) == len(given)
