"""Sent messages that are not acknowledged yet: limits their number and finds the callback of each acknowledgement."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES
from shared.mqtt.bus import Ack, AckHandler

MAX_INFLIGHT = 1024
"""QoS 1 publications without an acknowledgement; further ones are refused, except retained ones. The same number of
QoS 0 publications may wait to be written."""
MAX_INFLIGHT_BYTES = 4 * MAX_MESSAGE_BYTES
"""Payload bytes of each of these two groups; a single message is always admitted."""


class UnsentMessage(Protocol):
    """A QoS 0 publication in paho's send queue."""

    def is_published(self) -> bool:
        """Returns whether it was written to the socket.

        Raises:
            RuntimeError: it will never be written because its connection is gone.
        """


class InflightMessages:
    """Publications by packet identifier. Several threads publish; the network thread reports acknowledgements."""

    def __init__(self, limit: int, on_change: Callable[[int], None], *, limit_bytes: int = MAX_INFLIGHT_BYTES) -> None:
        """`on_change` is called, under a lock, with the number of unacknowledged messages whenever it changes."""
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._on_change = on_change
        self._lock = threading.Lock()
        self._publications: dict[int, tuple[AckHandler, int]] = {}  # Callback and payload bytes.
        self._bytes = 0
        self._publishing = 0
        self._early: dict[int, Ack] = {}  # Acknowledgements that arrived before `add`.
        self._subscriptions = 0
        self._unsent: deque[tuple[UnsentMessage, int]] = deque()

    def __len__(self) -> int:
        """The number of unacknowledged publications."""
        return len(self._publications)

    def admit(self, size: int, *, always: bool) -> bool:
        """Returns whether a publication of `size` bytes may be sent; if so, `add` must follow."""
        with self._lock:
            count = len(self._publications) + self._publishing
            is_full = count >= self._limit or (count > 0 and self._bytes + size > self._limit_bytes)
            if is_full and not always:
                return False
            self._publishing += 1
            self._bytes += size
            return True

    def add(self, mid: int, acknowledged: AckHandler, size: int) -> Ack | None:
        """Registers a publication that was handed to paho; returns its acknowledgement if that has already arrived."""
        with self._lock:
            self._publishing -= 1
            ack = self._early.pop(mid, None)
            if ack is None:
                self._publications[mid] = (acknowledged, size)
                self._changed()
            else:
                self._bytes -= size
            if not self._publishing:
                self._early.clear()
            return ack

    def acknowledge(self, mid: int, ack: Ack) -> AckHandler | None:
        """Removes an acknowledged publication and returns its callback."""
        with self._lock:
            found = self._publications.pop(mid, None)
            if found is None:
                if self._publishing:
                    self._early[mid] = ack
                return None
            self._bytes -= found[1]
            self._changed()
            return found[0]

    def subscribing(self) -> None:
        """Counts a subscription that is about to be sent."""
        with self._lock:
            self._subscriptions += 1
            self._changed()

    def subscribed(self) -> None:
        """Uncounts a subscription that was acknowledged or could not be sent."""
        with self._lock:
            self._subscriptions = max(0, self._subscriptions - 1)
            self._changed()

    def reconnected(self) -> None:
        """Adapts to a new connection: publications stay unacknowledged, subscriptions are sent again."""
        with self._lock:
            self._subscriptions = 0
            self._changed()

    def admit_qos_0(self, size: int) -> bool:
        """Returns whether a QoS 0 publication may be sent, given the earlier ones that are not written yet."""
        with self._lock:
            while self._unsent and _is_done(self._unsent[0][0]):
                self._unsent.popleft()
            unsent_bytes = sum(each for _, each in self._unsent)
            return not unsent_bytes or (len(self._unsent) < self._limit and unsent_bytes + size <= self._limit_bytes)

    def add_qos_0(self, publication: UnsentMessage, size: int) -> None:
        """Registers a QoS 0 publication that was handed to paho."""
        with self._lock:
            self._unsent.append((publication, size))

    def _changed(self) -> None:
        self._on_change(len(self._publications) + self._subscriptions)


def _is_done(publication: UnsentMessage) -> bool:
    try:
        return publication.is_published()
    except RuntimeError:
        return True
