"""Clock offsets between this vehicle and each worker process, and whether all workers hang."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edge.workers.worker_stats import WorkerStats
from shared import clock
from shared.clock import Exchange, Offset, OffsetEstimator

_MAX_NODES = 512  # A restarted worker is a new node.


class LastEcho(NamedTuple):
    """What the echoes of a node tell; zeros if it never echoed a probe."""

    at_ns: int = 0  # Arrival of the last one.
    round_trip_ns: int = 0  # Smoothed time that a probe and its echo travel.


_NO_ECHO = LastEcho()


class WorkerClocks:
    """Estimates the clock offset of each node. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probed: OrderedDict[str, OffsetEstimator] = OrderedDict()
        self._unprobed: OrderedDict[str, OffsetEstimator] = OrderedDict()
        self._ignored: Counter[str] = Counter()

    @property
    def ignored(self) -> Mapping[str, int]:
        """Number of rejected echoes by reason."""
        with self._lock:
            return dict(self._ignored)

    def add_probe(self, node: str, exchange: Exchange) -> None:
        """Adds the four times of a probe and its echo by `node`."""
        with self._lock:
            _estimator(self._probed, node).add(exchange)

    def last_echo(self, node: str) -> LastEcho:
        """Returns when `node` last echoed a probe, and the round trip of its probes."""
        with self._lock:
            estimator = self._probed.get(node)
            return LastEcho(estimator.at_ns, estimator.round_trip_ns) if estimator else _NO_ECHO

    def ignore(self, reason: str) -> None:
        """Counts a rejected echo."""
        with self._lock:
            self._ignored[reason] += 1

    def offset(self, node: str, exchange: Exchange) -> Offset:
        """Returns the clock of `node` minus the vehicle's clock during `exchange`, the four times of a frame.

        Without echoed probes, the estimate uses the exchanges of frames only.
        """
        with self._lock:
            estimator = self._probed.get(node)
            if estimator is None:
                estimator = _estimator(self._unprobed, node)
                estimator.add(exchange)
            offset = estimator.offset_during(exchange)
            if offset is None:  # The clock was set since the last probe: start over with this exchange.
                estimator.add(exchange)
                offset = estimator.offset_during(exchange)
        assert offset is not None, "an estimator contradicts its first exchange"
        return offset


def _estimator(estimators: OrderedDict[str, OffsetEstimator], node: str) -> OffsetEstimator:
    """Returns the estimator of a node; a new one replaces the least recently used."""
    estimator = estimators.setdefault(node, OffsetEstimator())
    estimators.move_to_end(node)
    if len(estimators) > _MAX_NODES:
        estimators.popitem(last=False)
    return estimator


UNRESPONSIVE_AFTER_S = 10.0
_PING_INTERVAL_NS = 1_000_000_000

_Workers = Sequence[tuple[str, str]]  # Name and process session of each worker.


@dataclass(slots=True)
class LivenessMonitor:
    """Tells whether all workers hang although the broker still lists them as online. Not thread-safe.

    A process that hangs keeps its connection; the broker reports it only after one and a half keepalives. It stops echoing
    clock probes, however, and an echo depends on nothing but the worker's network thread. A dead link looks the same from
    here, so the monitor pings the broker. After an outage, delayed messages arrive one by one, so a silence must persist
    for a while before it counts.
    """

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
