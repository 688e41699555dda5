"""Clock offsets between this vehicle and each worker process."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

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
