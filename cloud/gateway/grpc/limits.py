"""Limits of concurrent gRPC calls: how many there are, how many bytes they hold, how long each may wait for its caller."""

import threading
from collections import Counter
from collections.abc import Callable

import grpc

from cloud.gateway.common.errors import Kind, RefusedError
from shared import clock

_CHECK_INTERVAL_S = 1.0  # Between two searches for calls that have waited too long.


class ActiveCall:
    """One call from its admission to its end. Its methods may be called from any thread."""

    def __init__(self, calls: "ActiveCalls", context: grpc.ServicerContext) -> None:
        self.connection: str = context.peer()  # The caller's address with its port.
        self._calls = calls
        self._context = context
        self.waiting_since_ns: int | None = None  # None: the worker is busy with the call.
        self.max_wait_s: float | None = None  # That the caller may keep the worker waiting; None: without end.
        self.held_bytes = 0
        self.has_ended = False

    def wait_for_caller(self, max_wait_s: float | None) -> None:
        """The next step is the caller's: to send a message, or to receive the answer."""
        self.waiting_since_ns, self.max_wait_s = clock.now_ns(), max_wait_s

    def work(self) -> None:
        """The next step is the worker's."""
        self.waiting_since_ns = None

    def hold(self, size: int) -> None:
        """Counts bytes that the call holds until it ends or releases them.

        Raises:
            RefusedError: all calls together would hold too many bytes.
        """
        self._calls.hold(self, size)

    def release(self, size: int) -> None:
        """Counts bytes that the call no longer holds."""
        self._calls.hold(self, -size)

    def is_overdue(self, now_ns: int) -> bool:
        """Whether the caller has kept the worker waiting for too long."""
        since_ns, max_wait_s = self.waiting_since_ns, self.max_wait_s
        return since_ns is not None and max_wait_s is not None and now_ns - since_ns > max_wait_s * 1e9

    def cancel(self) -> None:
        """Ends the call with the code CANCELLED."""
        self._context.cancel()


class ActiveCalls:
    """All calls that are being received, answered or sent. Any thread may use it.

    When it is full, a call of a connection with few calls takes the place of one that waits for its caller, of the
    connection with the most calls: slow or silent callers cannot keep others out.
    """

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        """`max_bytes`: of the messages that all calls hold together."""
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._calls: dict[ActiveCall, None] = {}  # In the order of their admission.
        self._counts: Counter[str] = Counter()  # Calls by connection.
        self._held_bytes = 0

    def enter(self, context: grpc.ServicerContext, max_wait_s: float | None) -> ActiveCall:
        """Admits a call, which first waits for its caller's message; it leaves when gRPC reports its end.

        Raises:
            RefusedError: there are too many calls, and the worker is busy with all of them.
        """
        call = ActiveCall(self, context)
        call.wait_for_caller(max_wait_s)
        with self._lock:
            evicted = self._evictable(call.connection) if len(self._calls) >= self._max_calls else None
            if evicted is None and len(self._calls) >= self._max_calls:
                raise RefusedError(Kind.BUSY, f"{len(self._calls)} calls are being answered: ask again")
            if evicted is not None:
                self._remove(evicted)
            self._calls[call] = None
            self._counts[call.connection] += 1
        if evicted is not None:
            evicted.cancel()
        if not context.add_callback(lambda: self._leave(call)):
            self._leave(call)
        return call

    def hold(self, call: ActiveCall, size: int) -> None:
        """See ActiveCall."""
        with self._lock:
            if call.has_ended:
                return
            if size > 0 and self._held_bytes + size > self._max_bytes:
                raise RefusedError(
                    Kind.BUSY, f"the calls under way hold {self._held_bytes} bytes: ask again when some are answered"
                )
            call.held_bytes += size
            self._held_bytes += size

    def cancel_overdue(self) -> None:
        """Ends the calls whose callers have kept the worker waiting for too long."""
        now_ns = clock.now_ns()
        with self._lock:
            overdue = [call for call in self._calls if call.is_overdue(now_ns)]
        for call in overdue:
            call.cancel()

    def _evictable(self, newcomer: str) -> ActiveCall | None:
        """The call that gives its place to one of another connection.

        None where the newcomer's connection has as many calls as any, or the worker is busy with every call of those
        that have more.
        """
        most = max(self._counts.values(), default=0)
        if self._counts[newcomer] + 1 >= most:
            return None
        waiting = [
            call
            for call in self._calls
            if call.waiting_since_ns is not None and self._counts[call.connection] > self._counts[newcomer] + 1
        ]
        return max(waiting, key=lambda call: self._counts[call.connection], default=None)

    def _leave(self, call: ActiveCall) -> None:
        with self._lock:
            if not call.has_ended:
                self._remove(call)

    def _remove(self, call: ActiveCall) -> None:
        del self._calls[call]
        self._counts[call.connection] -= 1
        if not self._counts[call.connection]:
            del self._counts[call.connection]
        call.has_ended = True
        self._held_bytes -= call.held_bytes


class OverdueCheck:
    """A thread that ends overdue calls."""

    def __init__(self, *calls: ActiveCalls, interval_s: float) -> None:
        self._calls = calls
        self._interval_s = min(_CHECK_INTERVAL_S, interval_s)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grpc-overdue", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            for calls in self._calls:
                calls.cancel_overdue()


class TokenBucket:
    """A rate limit that allows bursts."""

    def __init__(self, per_second: float, burst: int, now_ns: Callable[[], int] = clock.now_ns) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now_ns = now_ns
        self._tokens, self._at_ns = float(burst), now_ns()

    def take(self) -> bool:
        """Takes a token; False where none is left."""
        now_ns = self._now_ns()
        self._tokens = min(self._burst, self._tokens + (now_ns - self._at_ns) / 1e9 * self._per_second)
        self._at_ns = now_ns
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
