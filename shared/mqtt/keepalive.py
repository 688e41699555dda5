"""Detects dead connections from the times of what was sent and received."""

import threading

STALL_NS = (
    2_000_000_000  # A check that comes this late means that the process was suspended, not that the link is dead.
)


class LinkMonitor:
    """Decides whether a connection is dead, without using sockets or clocks: callers pass the time in nanoseconds.

    A connection is dead when a publication or a subscription has awaited its acknowledgement for the timeout and
    nothing was received in that time. Any received bytes count, so a large message on a slow link does not look like
    silence. An idle connection is left to MQTT's own keepalive. A connection that the broker does not accept in time is
    dead too. Thread-safe.
    """

    def __init__(self, timeout_s: float, accept_timeout_s: float) -> None:
        self._timeout_ns = round(timeout_s * 1e9)
        self._accept_timeout_ns = round(accept_timeout_s * 1e9)
        self._lock = threading.Lock()
        self._opened_ns: int | None = None  # None: there is no connection.
        self.is_accepted = False
        self._pending = 0
        self._pending_since_ns = 0  # Time at which `_pending` last rose from zero.
        self._checked_ns = 0
        self.last_received_ns = 0

    def opened(self, now_ns: int) -> None:
        """Starts to monitor a new connection; messages sent over an earlier one no longer count."""
        with self._lock:
            self._opened_ns = self.last_received_ns = self._checked_ns = now_ns
            self.is_accepted = False
            self._pending = 0

    def accepted(self) -> None:
        """Records that the broker accepted the connection."""
        self.is_accepted = True

    def closed(self) -> None:
        """Stops monitoring until the next connection."""
        self._opened_ns = None

    def set_pending(self, count: int, now_ns: int) -> None:
        """Sets how many sent messages await an acknowledgement; call it whenever that number changes."""
        with self._lock:
            if count and not self._pending:
                self._pending_since_ns = now_ns
            self._pending = count

    def received(self, now_ns: int) -> None:
        """Records that bytes were received."""
        self.last_received_ns = now_ns

    def is_dead(self, now_ns: int) -> bool:
        """Returns whether the connection must be replaced. Call it at least once a second."""
        with self._lock:
            stalled = not 0 <= now_ns - self._checked_ns <= STALL_NS
            self._checked_ns = now_ns
            if self._opened_ns is None:
                return False
            if stalled:  # All timeouts start again.
                self._opened_ns = self._pending_since_ns = self.last_received_ns = now_ns
                return False
            if not self.is_accepted:
                return now_ns - self._opened_ns >= self._accept_timeout_ns
            silent_since_ns = max(self._pending_since_ns, self.last_received_ns)
            return bool(self._pending) and now_ns - silent_since_ns >= self._timeout_ns
