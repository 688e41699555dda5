"""What a vehicle knows of the workers' clocks: one estimate for each process that answers."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping

from shared.clock import Exchange, Offset, OffsetEstimator

_MAX_NODES = 512  # A worker that is started again is another node, with another clock.


class WorkerClocks:
    """An offset estimator for each node. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probed: OrderedDict[str, OffsetEstimator] = OrderedDict()
        self._unprobed: OrderedDict[str, OffsetEstimator] = OrderedDict()
        self._ignored: Counter[str] = Counter()

    @property
    def ignored(self) -> Mapping[str, int]:
        """How many echoes were not believed: by reason."""
        with self._lock:
            return dict(self._ignored)

    def probed(self, node: str, exchange: Exchange) -> None:
        """A probe of ours came back from `node`."""
        with self._lock:
            _of(self._probed, node).add(exchange)

    def echoed_ns(self, node: str) -> int:
        """When `node` last answered a probe; 0 where it has not."""
        with self._lock:
            estimator = self._probed.get(node)
            return estimator.at_ns if estimator else 0

    def ignore(self, reason: str) -> None:
        """Count an echo that is not believed."""
        with self._lock:
            self._ignored[reason] += 1

    def offset(self, node: str, exchange: Exchange) -> Offset:
        """The clock of `node` minus ours while a frame's own `exchange` was under way, by what is known now.

        A node that answers no probes, or none yet, is known by its frames alone.
        """
        with self._lock:
            estimator = self._probed.get(node)
            if estimator is None:
                estimator = _of(self._unprobed, node)
                estimator.add(exchange)
            offset = estimator.during(exchange)
            if offset is None:  # That clock was changed since the last probe: begin anew with what is at hand.
                estimator.add(exchange)
                offset = estimator.during(exchange)
        assert offset is not None, "an estimator contradicts the exchange it just began with"
        return offset


def _of(estimators: OrderedDict[str, OffsetEstimator], node: str) -> OffsetEstimator:
    """The estimator of a node; the one that was longest silent makes room for a new one."""
    estimator = estimators.setdefault(node, OffsetEstimator())
    estimators.move_to_end(node)
    if len(estimators) > _MAX_NODES:
        estimators.popitem(last=False)
    return estimator
