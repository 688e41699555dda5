"""Limits of concurrent calls, the same for HTTP and gRPC: their number, the bytes that they hold, threads and time-outs."""

import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from cloud.serving.errors import ApiError, ErrorCode
from shared import clock
from shared.runtime.machine import usable_cores

MAX_CONNECTIONS_PER_CALL = 2  # Open HTTP connections per allowed call: some are being read, some are idle.
MAX_GRPC_CONNECTIONS = 4096
MAX_HELD_MESSAGES = 4  # Messages of the maximum size that all calls of a server may hold together.
_ACCEPTED_AT_ONCE = 256  # HTTP connections that may be new, or evicted and not closed yet.
_SPARE_THREADS = 32  # Threads of the gRPC server for calls that fail immediately.
_LIBRARY_THREADS = 16  # Threads of the grpcio library, except one per core, and of the check for overdue calls.


def most_connections(max_calls: int) -> dict[str, int]:
    """Returns the largest useful number of open connections by server."""
    return {"http": MAX_CONNECTIONS_PER_CALL * max_calls + _ACCEPTED_AT_ONCE, "grpc": MAX_GRPC_CONNECTIONS}


def max_streams_of(max_calls: int) -> int:
    """Returns the limit of open streams for a limit of concurrent calls."""
    return max(1, max_calls // 4)


def max_grpc_threads(max_calls: int) -> int:
    """Returns the maximum number of threads: the pool, a reader per stream, and the threads of grpcio."""
    return grpc_pool_size(max_calls) + max_streams_of(max_calls) + _LIBRARY_THREADS + usable_cores()


def grpc_pool_size(max_calls: int) -> int:
    """Returns the number of threads in which gRPC calls are processed."""
    return max_calls + max_streams_of(max_calls) + _SPARE_THREADS


@dataclass(frozen=True, slots=True)
class GatewayTimeouts:
    """The times for which the HTTP and gRPC servers wait for their callers."""

    body_s: float = 30.0  # Time limit for receiving the body of an HTTP request, or a gRPC message.
    header_s: float = 10.0  # Time limit for the first byte of an HTTP request, and again for its headers.
    send_s: float = 60.0  # Time limit for the caller to receive the response.
    stream_idle_s: float = 600.0  # Time without a message after which a gRPC stream is closed.
    shutdown_grace_s: float = 5.0  # Time for active gRPC calls to end when the worker stops.


DEFAULT_TIMEOUTS = GatewayTimeouts()


class CallLimits:
    """The calls that are being received, processed or sent. Thread-safe.

    When the limit is reached, a call of a connection with few calls evicts one that waits for its caller, from the
    connection with the most calls. Slow or silent callers thus cannot block others. Calls that name no connection
    evict none.
    """

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        """`max_bytes` limits the total size of the messages that all calls hold."""
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.lock = threading.Lock()
        self.held_bytes = 0
        self._calls: dict[ActiveCall, None] = {}  # Ordered by admission.

    def cancel_overdue(self) -> None:
        """Cancels the calls that have waited for their callers longer than allowed."""
        now_ns = clock.now_ns()
        with self.lock:
            overdue = [call for call in self._calls if (call.waits_until_ns or math.inf) < now_ns]
        for call in overdue:
            call.cancel()

    def add(self, call: "ActiveCall") -> "ActiveCall | None":
        """Adds a call and returns the one that it evicts; the caller holds the lock.

        Raises:
            ApiError: the limit is reached, and no call may be evicted.
        """
        evicted = None
        if len(self._calls) >= self.max_calls:
            evicted = self._evictable(call.connection)
            if evicted is None:
                raise ApiError(ErrorCode.BUSY, f"{len(self._calls)} calls are active, the limit: try again later")
            self.remove(evicted)
        if not call.is_over:
            self._calls[call] = None
        return evicted

    def remove(self, call: "ActiveCall") -> None:
        """Removes a call and the bytes that it holds; the caller holds the lock."""
        self._calls.pop(call, None)
        self.held_bytes -= call.held_bytes
        call.held_bytes = 0
        call.is_over = True

    def _evictable(self, newcomer: str) -> "ActiveCall | None":
        """The call to evict for one of the connection `newcomer`.

        None if that connection already has as many calls as any other, or if the worker is processing every call of
        the connections that have more.
        """
        counts = Counter(call.connection for call in self._calls)
        waiting = [
            call
            for call in self._calls
            if call.waits_until_ns is not None and counts[call.connection] > counts[newcomer] + 1
        ]
        return max(waiting, key=lambda call: counts[call.connection], default=None)


class ActiveCall:
    """One call and its part of the limits, from its beginning to its end. Thread-safe."""

    def __init__(self, limits: CallLimits, connection: str = "", cancel: Callable[[], object] | None = None) -> None:
        """`connection` is the caller's address with its port; `cancel` ends the call with the code CANCELLED.

        Without `cancel`, the call ends by itself only, and until then keeps the bytes that it holds.
        """
        self.connection = connection
        self.waits_until_ns: float | None = None  # None: the worker is processing the call.
        self.held_bytes = 0
        self.is_over = False
        self._limits = limits
        self._cancel = cancel

    def enter(self, max_wait_s: float = math.inf) -> None:
        """Counts the call, which waits for its caller's message; one that is over already is not counted.

        Raises:
            ApiError: the limit is reached, and no call may be evicted.
        """
        self.mark_waiting(max_wait_s)
        with self._limits.lock:
            evicted = self._limits.add(self)
        if evicted is not None:
            evicted.cancel()

    def mark_waiting(self, max_wait_s: float = math.inf) -> None:
        """Marks the call as waiting for its caller to send a message or to receive the response."""
        self.waits_until_ns = clock.now_ns() + max_wait_s * 1e9

    def mark_busy(self) -> None:
        """Marks the call as being processed by the worker."""
        self.waits_until_ns = None

    def hold(self, size: int) -> None:
        """Counts bytes that the call holds until it ends; a negative `size` releases them.

        Raises:
            ApiError: the call, or all calls together, would hold too many bytes.
        """
        limits = self._limits
        with limits.lock:
            if self.is_over:
                return
            if self._cancel is None and self.held_bytes + size > limits.max_bytes:  # The end of others would not help.
                raise ApiError(
                    ErrorCode.TOO_LARGE,
                    f"the call needs {self.held_bytes + size} bytes of memory, all calls together may use "
                    f"{limits.max_bytes}: send less",
                )
            if size > 0 and limits.held_bytes + size > limits.max_bytes:
                raise ApiError(
                    ErrorCode.BUSY, f"the active calls hold {limits.held_bytes} bytes: try again when some have ended"
                )
            self.held_bytes += size
            limits.held_bytes += size

    def cancel(self) -> None:
        """Ends the call from outside."""
        if self._cancel is not None:
            self._cancel()

    def end(self) -> None:
        """Gives back the call's part of the limits; later calls have no effect."""
        with self._limits.lock:
            self._limits.remove(self)


class TokenBucket:
    """A rate limit that allows bursts."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens, self._at_ns = float(burst), 0

    def take(self, now_ns: int) -> bool:
        """Takes a token; returns False if none is available."""
        self._tokens = min(self._burst, self._tokens + (now_ns - self._at_ns) / 1e9 * self._per_second)
        self._at_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
