"""How many gRPC calls may be under way, and how many bytes their messages may hold."""

import threading

from cloud.gateway.refusal import Kind, RefusedError


class Capacity:
    """That of all calls together."""

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.calls = 0
        self.bytes = 0
        self.lock = threading.Lock()

    def share(self) -> "Share":
        """A call's, of nothing so far."""
        return Share(self)


class Share:
    """What one call has of it. Any thread may call it."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._bytes = 0
        self._is_under_way = False

    def enter(self) -> None:
        """The call is under way.

        Raises:
            RefusedError: as many as may be are.
        """
        with self._capacity.lock:
            if self._capacity.calls >= self._capacity.max_calls:
                raise RefusedError(Kind.BUSY, f"{self._capacity.calls} calls are under way: ask again")
            self._capacity.calls += 1
            self._is_under_way = True

    def hold(self, size: int) -> None:
        """The call holds so many bytes more; of one that is over nobody counts them.

        Raises:
            RefusedError: all calls together would hold too many.
        """
        with self._capacity.lock:
            if not self._is_under_way:
                return
            if self._capacity.bytes + size > self._capacity.max_bytes:
                raise RefusedError(
                    Kind.BUSY,
                    f"the calls under way hold {self._capacity.bytes} bytes: ask again when some are answered",
                )
            self._bytes += size
            self._capacity.bytes += size

    def give_back(self, size: int) -> None:
        """The call holds so many bytes less."""
        with self._capacity.lock:
            if self._is_under_way:
                self._bytes -= size
                self._capacity.bytes -= size

    def leave(self) -> None:
        """The call is over."""
        with self._capacity.lock:
            if self._is_under_way:
                self._is_under_way = False
                self._capacity.calls -= 1
                self._capacity.bytes -= self._bytes
