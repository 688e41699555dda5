"""What was sent and not acknowledged yet, so that it can be bounded and each acknowledgement finds who waits for it."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES
from shared.mqtt.bus import Ack, AckHandler

MAX_INFLIGHT = 1024
"""Publications of QoS 1 that the broker has not acknowledged; more are refused, but for what is retained. As many again of
QoS 0 that are still to be written."""
MAX_INFLIGHT_BYTES = 4 * MAX_MESSAGE_BYTES
"""The payloads of each of these together; one message may always wait."""


class Written(Protocol):
    """A publication of QoS 0 on its way out."""

    def is_published(self) -> bool:
        """Whether it has left.

        Raises:
            RuntimeError: it never will: there is no connection, or it went with its connection.
        """


class InflightMessages:
    """Publications by the number that the client gave them; several threads publish, one brings acknowledgements."""

    def __init__(self, most: int, on_change: Callable[[int], None]) -> None:
        """`on_change` is told how much waits for the broker, whenever that changes, under a lock."""
        self._most = most
        self._on_change = on_change
        self._lock = threading.Lock()
        self._publications: dict[int, tuple[AckHandler, int]] = {}  # Whom to tell, and bytes.
        self._bytes = 0
        self._publishing = 0
        self._early: dict[int, Ack] = {}  # Acknowledgements that overtook the call they belong to.
        self._subscriptions = 0
        self._unwritten: deque[tuple[Written, int]] = deque()

    def __len__(self) -> int:
        """How many publications wait."""
        return len(self._publications)

    def admit(self, size: int, *, always: bool) -> bool:
        """Whether a publication of `size` bytes may be handed over; if so, `add` must follow."""
        with self._lock:
            count = len(self._publications) + self._publishing
            is_full = count >= self._most or (count > 0 and self._bytes + size > MAX_INFLIGHT_BYTES)
            if is_full and not always:
                return False
            self._publishing += 1
            self._bytes += size
            return True

    def add(self, number: int, acknowledged: AckHandler, size: int) -> Ack | None:
        """It was handed over under this number; returns its acknowledgement where that came already."""
        with self._lock:
            self._publishing -= 1
            ack = self._early.pop(number, None)
            if ack is None:
                self._publications[number] = (acknowledged, size)
                self._changed()
            else:
                self._bytes -= size
            if not self._publishing:
                self._early.clear()
            return ack

    def acknowledge(self, number: int, ack: Ack) -> AckHandler | None:
        """The broker has acknowledged a publication; returns whom to tell."""
        with self._lock:
            found = self._publications.pop(number, None)
            if found is None:
                if self._publishing:
                    self._early[number] = ack
                return None
            self._bytes -= found[1]
            self._changed()
            return found[0]

    def subscribing(self) -> None:
        """A subscription is about to be sent."""
        with self._lock:
            self._subscriptions += 1
            self._changed()

    def subscribed(self) -> None:
        """The broker has acknowledged a subscription, or it never left."""
        with self._lock:
            self._subscriptions = max(0, self._subscriptions - 1)
            self._changed()

    def reconnected(self) -> None:
        """The connection is another: publications wait on, subscriptions are sent again."""
        with self._lock:
            self._subscriptions = 0
            self._changed()

    def has_room_to_write(self, size: int) -> bool:
        """Whether a publication of QoS 0 may be handed over, by what of the earlier ones is still to be written."""
        with self._lock:
            while self._unwritten and _is_over(self._unwritten[0][0]):
                self._unwritten.popleft()
            waiting = sum(waits for _, waits in self._unwritten)
            return not waiting or (len(self._unwritten) < self._most and waiting + size <= MAX_INFLIGHT_BYTES)

    def write(self, publication: Written, size: int) -> None:
        """A publication of QoS 0 was handed over."""
        with self._lock:
            self._unwritten.append((publication, size))

    def _changed(self) -> None:
        self._on_change(len(self._publications) + self._subscriptions)


def _is_over(publication: Written) -> bool:
    try:
        return publication.is_published()
    except RuntimeError:
        return True
