"""Limits the number of active HTTP calls, and the bytes that they hold."""

import threading
from collections.abc import MutableMapping
from typing import Any

from cloud.gateway.common.errors import ApiError, ErrorCode

_STATE_KEY = "call_slot"


class ConcurrencyLimit:
    """The limits of all calls together, and their current use."""

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.calls = 0
        self.bytes = 0
        self.lock = threading.Lock()


class CallSlot:
    """The part of a `ConcurrencyLimit` that one call uses. Thread-safe."""

    def __init__(self, limit: ConcurrencyLimit, scope: MutableMapping[str, Any]) -> None:
        """Stores the slot in the call's ASGI scope."""
        self._limit = limit
        self._bytes = 0
        self._is_active = False
        self._is_released = False
        scope.setdefault("state", {})[_STATE_KEY] = self

    @classmethod
    def of(cls, scope: MutableMapping[str, Any]) -> "CallSlot":
        """Returns the slot of the call with this scope."""
        slot = scope["state"][_STATE_KEY]
        assert isinstance(slot, cls)
        return slot

    def acquire(self) -> None:
        """Counts the call as active; a call whose client has left, which is released already, is not counted.

        Raises:
            ApiError: the maximum number of calls is active.
        """
        limit = self._limit
        with limit.lock:
            if limit.calls >= limit.max_calls:
                raise ApiError(ErrorCode.BUSY, f"{limit.calls} calls are active, the limit: try again later")
            if not self._is_released:
                self._is_active = True
                limit.calls += 1

    def hold(self, size: int) -> None:
        """Counts bytes that the call holds until it ends.

        Raises:
            ApiError: the call, or all calls together, would hold too many bytes.
        """
        limit = self._limit
        with limit.lock:
            if self._is_released:
                return
            if self._bytes + size > limit.max_bytes:  # The end of other calls would not help.
                raise ApiError(
                    ErrorCode.TOO_LARGE,
                    f"the call needs {self._bytes + size} bytes of memory, all calls together may use "
                    f"{limit.max_bytes}: send less",
                )
            if limit.bytes + size > limit.max_bytes:
                raise ApiError(
                    ErrorCode.BUSY, f"the active calls hold {limit.bytes} bytes: try again when some have ended"
                )
            self._bytes += size
            limit.bytes += size

    def release(self) -> None:
        """Ends the call's use of the limit."""
        with self._limit.lock:
            self._limit.bytes -= self._bytes
            self._limit.calls -= self._is_active
            self._is_released = True
