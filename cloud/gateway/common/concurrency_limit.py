"""How many calls of a protocol may be under way, and how many bytes they may hold."""

import threading

from cloud.gateway.common.errors import Kind, RefusedError


class Capacity:
    """That of all calls together."""

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.calls = 0
        self.bytes = 0
        self.lock = threading.Lock()


class Share:
    """What one call has of it. Any thread may call it."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._bytes = 0
        self._calls = 0
        self._has_left = False

    def enter(self) -> None:
        """The call is under way.

        Raises:
            RefusedError: as many as may be are.
        """
        capacity = self._capacity
        with capacity.lock:
            if capacity.calls >= capacity.max_calls:
                raise RefusedError(Kind.BUSY, f"{capacity.calls} calls are being answered: ask again")
            if not self._has_left:
                self._calls += 1
                capacity.calls += 1

    def hold(self, size: int) -> None:
        """The call holds so many bytes more; of one that is over nobody counts them.

        Raises:
            RefusedError: all calls together would hold too many, or this one alone.
        """
        capacity = self._capacity
        with capacity.lock:
            if self._has_left:
                return
            if self._bytes + size > capacity.max_bytes:  # No other call's end makes room for it.
                raise RefusedError(
                    Kind.TOO_LARGE,
                    f"the call takes {self._bytes + size} bytes of memory, all together may {capacity.max_bytes}: send less",
                )
            if capacity.bytes + size > capacity.max_bytes:
                raise RefusedError(
                    Kind.BUSY, f"the calls under way hold {capacity.bytes} bytes: ask again when some are answered"
                )
            self._bytes += size
            capacity.bytes += size

    def give_back(self, size: int) -> None:
        """The call holds so many bytes less."""
        with self._capacity.lock:
            if not self._has_left:
                self._bytes -= size
                self._capacity.bytes -= size

    def leave(self) -> None:
        """The call is over."""
        with self._capacity.lock:
            self._capacity.bytes -= self._bytes
            self._capacity.calls -= self._calls
            self._bytes = self._calls = 0
            self._has_left = True
