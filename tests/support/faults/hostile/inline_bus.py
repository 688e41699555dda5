"""A bus without threads: messages are delivered by the caller, and publications are only counted."""

import threading
from collections import Counter

from shared import clock
from shared.mqtt.bus import Ack, AckHandler, Delivery, Handler, Properties
from shared.mqtt.packets import matches


class InlineBus:
    """A bus for one node and millions of messages. It has no queue, so only the node can lose a message."""

    supports_shared_subscriptions = True
    is_connected = True
    max_payload_bytes = 1 << 24
    payload_limit_reason = f"this bus takes {max_payload_bytes}"

    def __init__(self) -> None:
        self.published: Counter[str] = Counter()  # Keys: the topic after its version.
        self._lock = threading.Lock()
        self._handlers: dict[str, Handler] = {}

    @property
    def last_received_ns(self) -> int:
        """See Bus."""
        return clock.now_ns()

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:  # noqa: ARG002 (nothing is lost here)
        """See Bus."""
        self._handlers = {**self._handlers, topic_filter: handler}

    def unsubscribe(self, topic_filter: str) -> None:
        """See Bus."""
        self._handlers = {each: handler for each, handler in self._handlers.items() if each != topic_filter}

    def publish(
        self,
        topic: str,
        payload: bytes,  # noqa: ARG002 (only counted)
        *,
        qos: int,  # noqa: ARG002 (nothing is lost here)
        retained: bool = False,  # noqa: ARG002 (only counted)
        properties: Properties | None = None,  # noqa: ARG002 (only counted)
        acknowledged: AckHandler | None = None,
    ) -> None:
        """See Bus."""
        with self._lock:
            self.published[topic.split("/", 3)[2]] += 1
        if acknowledged:
            acknowledged(Ack(accepted=True, no_subscriber=False))

    def deliver(self, topic: str, payload: bytes, properties: Properties) -> bool:
        """Delivers a message to the node; returns whether the node has subscribed to its topic."""
        taken = False
        for topic_filter, handler in self._handlers.items():
            if matches(topic_filter, topic):
                handler(Delivery(topic, payload, clock.now_ns(), properties))
                taken = True
        return taken

    def close(self) -> None:
        """See Bus."""
