"""Whether a connection still carries anything, judged by what is heard over it."""

import threading

STALL_NS = 2_000_000_000  # Whoever looks so late did not run either: silence meanwhile proves nothing.


class LinkMonitor:
    """Judges one connection at a time; knows neither sockets nor clocks: whoever tells or asks says the moment.

    Moments are nanoseconds of any one clock. A connection is dead when nothing was heard for a timeout although a
    publication or a subscription waits as long for its acknowledgement. A large message that crawls is no silence while
    it, or what was sent before it, is acknowledged within the timeout. Nor is a message that comes in piece by piece.
    An idle connection is for the MQTT client's keepalive to judge.

    Dead is, too, a connection that the broker does not accept within the patience for it. May be used by several threads.
    """

    def __init__(self, timeout_s: float, connect_patience_s: float) -> None:
        self._timeout_ns = round(timeout_s * 1e9)
        self._patience_ns = round(connect_patience_s * 1e9)
        self._lock = threading.Lock()
        self._opened_ns: int | None = None  # None: there is no connection to judge.
        self.is_accepted = False
        self._unanswered = 0
        self._waiting_since_ns = 0  # When something began to wait while nothing else did.
        self._looked_ns = 0
        self.last_received_ns = 0

    def opened(self, now_ns: int) -> None:
        """A connection stands, and the broker is asked to accept it; nothing that was sent before waits on it."""
        with self._lock:
            self._opened_ns = self.last_received_ns = self._looked_ns = now_ns
            self.is_accepted = False
            self._unanswered = 0

    def accepted(self) -> None:
        """The broker has accepted the connection."""
        self.is_accepted = True

    def closed(self) -> None:
        """There is no connection any more."""
        self._opened_ns = None

    def awaits(self, count: int, now_ns: int) -> None:
        """So many things that were sent are not acknowledged yet; to be told whenever that changes."""
        with self._lock:
            if count and not self._unanswered:
                self._waiting_since_ns = now_ns
            self._unanswered = count

    def heard(self, now_ns: int) -> None:
        """Bytes have come."""
        self.last_received_ns = now_ns

    def is_dead(self, now_ns: int) -> bool:
        """Whether the connection must be given up. Ask at least every second."""
        with self._lock:
            stalled = not 0 <= now_ns - self._looked_ns <= STALL_NS
            self._looked_ns = now_ns
            if self._opened_ns is None:
                return False
            if stalled:  # As if all had been heard and sent now.
                self._opened_ns = self._waiting_since_ns = self.last_received_ns = now_ns
                return False
            if not self.is_accepted:
                return now_ns - self._opened_ns >= self._patience_ns
            return (
                bool(self._unanswered)
                and now_ns - max(self._waiting_since_ns, self.last_received_ns) >= self._timeout_ns
            )
