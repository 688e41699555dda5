"""The state of each worker, from its status, clock probe echoes, replies and load; detects that all workers hang."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edge.workers.worker_clocks import WorkerClocks, probe_interval_ns
from edge.workers.worker_directory import WorkerDirectory
from edge.workers.worker_stats import KnownLoad, WorkerStats
from shared import clock

UNRESPONSIVE_AFTER_S = 10.0
_MISSED_PROBES = 3  # Number of probe intervals without an echo after which a worker counts as unresponsive.
_PING_INTERVAL_NS = 1_000_000_000


class WorkerView(NamedTuple):
    """The state of a worker that is online and serves the model. Times are in ns, by the clock of this vehicle."""

    name: str
    session: str  # The session of its process.
    echo_ns: int  # Arrival of its last echo of a clock probe; 0 if it never echoed one.
    round_trip_ns: int  # Smoothed time that a probe and its echo travel.
    reply_ns: int  # Arrival of its last reply to a frame; 0 before the first one.
    is_unresponsive: bool  # True if it has stopped echoing probes; False if it never echoed one.
    known: KnownLoad | None  # Its load, perhaps of an earlier process; None if nothing is known.

    @property
    def last_sign_ns(self) -> int:
        """Time of its last echo or reply; 0 before the first one."""
        return max(self.echo_ns, self.reply_ns)


class WorkerWatch:
    """Combines all that is known about each worker. All methods may be called from any thread."""

    def __init__(self, workers: WorkerDirectory, clocks: WorkerClocks, stats: WorkerStats) -> None:
        self.directory = workers
        self._clocks = clocks
        self._stats = stats

    def online(self, now_ns: int) -> list[WorkerView]:
        """Returns a view of each worker that is online and serves the model."""
        online, loads = self.directory.online(), self.directory.loads
        known = {} if loads is None else loads.known()
        silent_since_ns = now_ns - _MISSED_PROBES * probe_interval_ns(len(online))
        views = []
        for name, session in online:
            echo_ns, round_trip_ns = self._clocks.last_echo(f"cloud/{name}/{session}")
            reply_ns, load = self._stats.last_reply_ns(name), known.get(name)
            is_unresponsive = 0 < echo_ns < silent_since_ns
            views.append(WorkerView(name, session, echo_ns, round_trip_ns, reply_ns, is_unresponsive, load))
        return views


@dataclass(slots=True)
class LivenessMonitor:
    """Detects that all workers hang although the broker still lists them as online. Not thread-safe.

    A process that hangs keeps its connection; the broker reports it only after one and a half keepalives. It stops echoing
    clock probes, however, and an echo depends on nothing but the worker's network thread. A dead link looks the same from
    here, so the monitor pings the broker, if there is one. After an outage, delayed messages arrive one by one, so a silence
    must persist for a while before it counts.
    """

    watch: WorkerWatch
    last_received_ns: Callable[[], int]  # Returns when anything last arrived from the broker.
    ping: Callable[[], None]  # Makes the broker send something.
    unresponsive_after_s: float = UNRESPONSIVE_AFTER_S  # Time without an echo or a reply.
    confirm_s: float = 1.0  # Time for which this silence must persist.
    _unresponsive_since_ns: int | None = field(default=None, init=False)
    _pinged_ns: int = field(default=0, init=False)

    def all_unresponsive(self) -> bool:
        """Returns whether all workers hang; False while any of them has never echoed a probe, as it may just be slow."""
        now_ns, unresponsive_after_ns = clock.now_ns(), round(self.unresponsive_after_s * 1e9)
        latest_ns = _latest_sign_ns(self.watch.online(now_ns))
        if not latest_ns or now_ns - latest_ns < unresponsive_after_ns:
            self._unresponsive_since_ns = None
            return False
        if self.last_received_ns() - latest_ns < unresponsive_after_ns:  # The link itself may be dead.
            if now_ns - self._pinged_ns >= _PING_INTERVAL_NS:
                self._pinged_ns = now_ns
                self.ping()
            self._unresponsive_since_ns = None
            return False
        if self._unresponsive_since_ns is None:
            self._unresponsive_since_ns = now_ns
        return now_ns - self._unresponsive_since_ns >= round(self.confirm_s * 1e9)


def _latest_sign_ns(workers: Sequence[WorkerView]) -> int:
    """Returns the latest sign of life of any worker; 0 without workers, or if one of them never echoed a probe."""
    if not all(worker.echo_ns for worker in workers):
        return 0
    return max((worker.last_sign_ns for worker in workers), default=0)
