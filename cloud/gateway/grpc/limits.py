"""Limits of concurrent gRPC calls: their number, the bytes that they hold, and the time they wait for their callers."""

import math
import threading
from collections import Counter
from collections.abc import Callable

import grpc

from cloud.gateway.common.errors import ApiError, ErrorCode
from shared import clock


class ActiveCall:
    """One call from its admission to its end. Thread-safe."""

    def __init__(self, calls: "ActiveCalls", context: grpc.ServicerContext) -> None:
        self.connection: str = context.peer()  # The caller's address with its port.
        self._calls = calls
        self._context = context
        self.waits_until_ns: float | None = None  # None: the worker is processing the call.
        self.held_bytes = 0

    def wait_for_caller(self, max_wait_s: float = math.inf) -> None:
        """Marks the call as waiting for its caller to send a message or to receive the response."""
        self.waits_until_ns = clock.now_ns() + max_wait_s * 1e9

    def mark_busy(self) -> None:
        """Marks the call as being processed by the worker."""
        self.waits_until_ns = None

    def hold(self, size: int) -> None:
        """Counts bytes that the call holds until it ends; a negative `size` releases them.

        Raises:
            ApiError: all calls together would hold too many bytes.
        """
        self._calls.hold(self, size)

    def cancel(self) -> None:
        """Ends the call with the code CANCELLED."""
        self._context.cancel()


class ActiveCalls:
    """The calls that are being received, processed or sent. Thread-safe.

    When the limit is reached, a call of a connection with few calls evicts one that waits for its caller, from the
    connection with the most calls. Slow or silent callers thus cannot block others.
    """

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        """`max_bytes` limits the total size of the messages that all calls hold."""
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._calls: dict[ActiveCall, None] = {}  # Ordered by admission.
        self._counts: Counter[str] = Counter()  # Calls by connection.
        self._held_bytes = 0

    def enter(self, context: grpc.ServicerContext, max_wait_s: float = math.inf) -> ActiveCall:
        """Admits a call, which waits for its caller's message and is removed when gRPC reports its end.

        Raises:
            ApiError: the limit is reached, and no call may be evicted.
        """
        call = ActiveCall(self, context)
        call.wait_for_caller(max_wait_s)
        evicted = None
        with self._lock:
            if len(self._calls) >= self._max_calls:
                evicted = self._evictable(call.connection)
                if evicted is None:
                    raise ApiError(ErrorCode.BUSY, f"{len(self._calls)} calls are active, the limit: try again later")
                self._remove(evicted)
            self._calls[call] = None
            self._counts[call.connection] += 1
        if evicted is not None:
            evicted.cancel()
        if not context.add_callback(lambda: self._leave(call)):
            self._leave(call)
        return call

    def hold(self, call: ActiveCall, size: int) -> None:
        """See `ActiveCall.hold`."""
        with self._lock:
            if call not in self._calls:  # It has ended.
                return
            if size > 0 and self._held_bytes + size > self._max_bytes:
                raise ApiError(
                    ErrorCode.BUSY,
                    f"the active calls hold {self._held_bytes} bytes: try again when some have ended",
                )
            call.held_bytes += size
            self._held_bytes += size

    def cancel_overdue(self) -> None:
        """Cancels the calls that have waited for their callers longer than allowed."""
        now_ns = clock.now_ns()
        with self._lock:
            overdue = [call for call in self._calls if (call.waits_until_ns or math.inf) < now_ns]
        for call in overdue:
            call.cancel()

    def _evictable(self, newcomer: str) -> ActiveCall | None:
        """The call to evict for one of the connection `newcomer`.

        None if that connection already has as many calls as any other, or if the worker is processing every call of
        the connections that have more.
        """
        most = max(self._counts.values(), default=0)
        if self._counts[newcomer] + 1 >= most:
            return None
        waiting = [
            call
            for call in self._calls
            if call.waits_until_ns is not None and self._counts[call.connection] > self._counts[newcomer] + 1
        ]
        return max(waiting, key=lambda call: self._counts[call.connection], default=None)

    def _leave(self, call: ActiveCall) -> None:
        with self._lock:
            if call in self._calls:
                self._remove(call)

    def _remove(self, call: ActiveCall) -> None:
        del self._calls[call]
        self._counts[call.connection] -= 1
        if not self._counts[call.connection]:
            del self._counts[call.connection]
        self._held_bytes -= call.held_bytes


class TokenBucket:
    """A rate limit that allows bursts."""

    def __init__(self, per_second: float, burst: int, now_ns: Callable[[], int] = clock.now_ns) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now_ns = now_ns
        self._tokens, self._at_ns = float(burst), now_ns()

    def take(self) -> bool:
        """Takes a token; returns False if none is available."""
        now_ns = self._now_ns()
        self._tokens = min(self._burst, self._tokens + (now_ns - self._at_ns) / 1e9 * self._per_second)
        self._at_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
