"""Liveness of the workers: detects that all workers hang although the broker still lists them as online.

A process that hangs keeps its connection; the broker reports it only after one and a half keepalives. It stops echoing
clock probes, however, and an echo depends on nothing but the worker's network thread. A dead link looks the same from
here, so the monitor pings the broker. After an outage, delayed messages arrive one by one, so a silence must persist for
a while before it counts.
"""

from collections.abc import Callable, Sequence

from edge.reliability.worker_clocks import WorkerClocks
from edge.reliability.worker_stats import WorkerStats
from shared import clock

UNRESPONSIVE_AFTER_S = 10.0
_PING_INTERVAL_NS = 1_000_000_000

_Workers = Sequence[tuple[str, str]]  # Name and process session of each worker.


class LivenessMonitor:
    """Tells whether any worker is still responsive. Not thread-safe."""

    def __init__(
        self,
        stats: WorkerStats,
        clocks: WorkerClocks,
        *,
        last_received_ns: Callable[[], int],
        ping: Callable[[], None],
        unresponsive_after_s: float = UNRESPONSIVE_AFTER_S,
        confirm_s: float = 1.0,
    ) -> None:
        """Sets the sources of information.

        Args:
            last_received_ns: Returns when anything last arrived from the broker.
            ping: Makes the broker send something.
            unresponsive_after_s: Time without a sign of life after which a worker counts as unresponsive.
            confirm_s: Time for which that must hold.
        """
        self._stats = stats
        self._clocks = clocks
        self._last_received_ns = last_received_ns
        self._ping = ping
        self._unresponsive_after_ns = round(unresponsive_after_s * 1e9)
        self._confirm_ns = round(confirm_s * 1e9)
        self._unresponsive_since_ns: int | None = None
        self._pinged_ns = 0

    def all_unresponsive(self, workers: _Workers) -> bool:
        """Returns whether all workers hang. A worker that never echoed a probe may just be slow, and does not count."""
        now_ns = clock.now_ns()
        signs_ns = [self._last_sign_ns(*worker) for worker in workers]
        if not signs_ns or not all(signs_ns) or now_ns - max(signs_ns) < self._unresponsive_after_ns:
            self._unresponsive_since_ns = None
            return False
        if self._last_received_ns() - max(signs_ns) < self._unresponsive_after_ns:  # The link itself may be dead.
            if now_ns - self._pinged_ns >= _PING_INTERVAL_NS:
                self._pinged_ns = now_ns
                self._ping()
            self._unresponsive_since_ns = None
            return False
        if self._unresponsive_since_ns is None:
            self._unresponsive_since_ns = now_ns
        return now_ns - self._unresponsive_since_ns >= self._confirm_ns

    def _last_sign_ns(self, name: str, session: str) -> int:
        """Returns when a worker last echoed a probe or replied; 0 if it never echoed one."""
        echo_ns = self._clocks.last_echo_ns(f"cloud/{name}/{session}")
        return max(echo_ns, self._stats.last_reply_ns(name)) if echo_ns else 0
