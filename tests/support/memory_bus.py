"""A bus in memory, for tests that are not about the network."""

import queue
import threading
from collections.abc import Callable
from typing import Self

from shared import clock
from shared.mqtt.bus import Ack, AckHandler, Delivery, Handler, Properties
from shared.mqtt.packets import matches


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
