"""Events of a transport for the vehicle node: faults, and the loss of the vehicle's name.

A transport connects before the node exists, so events are stored until the node is attached.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from shared.errors import SkylaneError


class EventListener(Protocol):
    """Receives events; the vehicle node is one."""

    def fault(self, error: BaseException) -> None:
        """A callback of the transport raised an exception."""

    def end(self, reason: SkylaneError) -> None:
        """The run must end early, in an orderly way."""


class TransportEvents:
    """Passes a transport's events to a listener. Any thread may call it."""

    def __init__(self) -> None:
        self.reconnected: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._listener: EventListener | None = None
        self._pending: list[tuple[Callable[[EventListener], None], BaseException]] = []

    def attach(self, listener: EventListener) -> None:
        """Passes stored events, and all later ones, to a listener."""
        with self._lock:
            self._listener = listener
            pending, self._pending = self._pending, []
        for deliver, _ in pending:
            deliver(listener)

    def check(self) -> None:
        """Raises the error of the first stored event, if there is any."""
        with self._lock:
            if self._pending:
                raise self._pending[0][1]

    def connected(self) -> None:
        """Reports that the bus has connected, for the first time or again."""
        self.reconnected()

    def fault(self, error: BaseException) -> None:
        """Reports an exception in a callback of the transport."""
        self._deliver(lambda listener: listener.fault(error), error)

    def give_up(self, reason: SkylaneError) -> None:
        """Reports that the run must end."""
        self._deliver(lambda listener: listener.end(reason), reason)

    def _deliver(self, deliver: Callable[[EventListener], None], error: BaseException) -> None:
        with self._lock:
            listener = self._listener
            if listener is None:
                self._pending.append((deliver, error))
                return
        deliver(listener)
