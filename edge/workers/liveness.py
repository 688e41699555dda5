"""Liveness of the workers: detects that all workers hang although the broker still lists them as online.

A process that hangs keeps its connection; the broker reports it only after one and a half keepalives. It stops echoing
clock probes, however, and an echo depends on nothing but the worker's network thread. A dead link looks the same from
here, so the monitor pings the broker. After an outage, delayed messages arrive one by one, so a silence must persist for
a while before it counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_stats import WorkerStats
from shared import clock

UNRESPONSIVE_AFTER_S = 10.0
_PING_INTERVAL_NS = 1_000_000_000

_Workers = Sequence[tuple[str, str]]  # Name and process session of each worker.


@dataclass(slots=True)
class LivenessMonitor:
    """Tells whether any worker is still responsive. Not thread-safe."""

    stats: WorkerStats
    clocks: WorkerClocks
    last_received_ns: Callable[[], int]  # Returns when anything last arrived from the broker.
    ping: Callable[[], None]  # Makes the broker send something.
    unresponsive_after_s: float = UNRESPONSIVE_AFTER_S  # Time without a sign of life.
    confirm_s: float = 1.0  # Time for which that must hold.
    _unresponsive_since_ns: int | None = field(default=None, init=False)
    _pinged_ns: int = field(default=0, init=False)

    def all_unresponsive(self, workers: _Workers) -> bool:
        """Returns whether all workers hang. A worker that never echoed a probe may just be slow, and does not count."""
        now_ns, unresponsive_after_ns = clock.now_ns(), round(self.unresponsive_after_s * 1e9)
        signs_ns = [self._last_sign_ns(*worker) for worker in workers]
        if not signs_ns or not all(signs_ns) or now_ns - max(signs_ns) < unresponsive_after_ns:
            self._unresponsive_since_ns = None
            return False
        if self.last_received_ns() - max(signs_ns) < unresponsive_after_ns:  # The link itself may be dead.
            if now_ns - self._pinged_ns >= _PING_INTERVAL_NS:
                self._pinged_ns = now_ns
                self.ping()
            self._unresponsive_since_ns = None
            return False
        if self._unresponsive_since_ns is None:
            self._unresponsive_since_ns = now_ns
        return now_ns - self._unresponsive_since_ns >= round(self.confirm_s * 1e9)

    def _last_sign_ns(self, name: str, session: str) -> int:
        """Returns when a worker last echoed a probe or replied; 0 if it never echoed one."""
        echo_ns = self.clocks.last_echo(f"cloud/{name}/{session}").at_ns
        return max(echo_ns, self.stats.last_reply_ns(name)) if echo_ns else 0
