"""Estimates of latencies from recent measurements."""

import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import attrgetter

from shared import clock

_SAMPLES = 20
_FASTEST_OF = 100  # The fastest of 20 would exceed a deadline that one frame in ten meets, in one case of eight.
_QUANTILE = 0.9
_STALE_NS = 10_000_000_000


class LatencyEstimator:
    """The 90 % quantile and the median of the last 20 measurements, and the fastest of the last 100. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent_ns: deque[int] = deque(maxlen=_FASTEST_OF)
        self._added_ns = 0
        self._ns = 0
        self._median_ns = 0
        self._fastest_ns = 0

    @property
    def ns(self) -> int:
        """The estimate in nanoseconds; 0 if there was no measurement in the last ten seconds.

        An old estimate must not be used: if it refuses every frame, no new measurement can replace it.
        """
        return 0 if self._is_stale else self._ns

    @property
    def median_ns(self) -> int:
        """The median in nanoseconds; 0 if there was no measurement in the last ten seconds."""
        return 0 if self._is_stale else self._median_ns

    @property
    def fastest_ns(self) -> int:
        """The fastest recent measurement in nanoseconds; 0 if there was none in the last ten seconds."""
        return 0 if self._is_stale else self._fastest_ns

    def add(self, duration_ns: int) -> None:
        """Adds a measurement."""
        with self._lock:
            if self._is_stale:
                self._recent_ns.clear()
            self._recent_ns.append(duration_ns)
            self._added_ns = clock.now_ns()
            ordered = sorted(islice(reversed(self._recent_ns), _SAMPLES))
            self._ns = ordered[int(_QUANTILE * (len(ordered) - 1))]
            self._median_ns = ordered[len(ordered) // 2]
            self._fastest_ns = min(self._recent_ns)

    @property
    def _is_stale(self) -> bool:
        return clock.now_ns() - self._added_ns >= _STALE_NS


class BatchLatencyEstimator:
    """The latency of a batch by its size. Thread-safe."""

    def __init__(self, max_size: int) -> None:
        self._by_size = [LatencyEstimator() for _ in range(max_size)]

    def add(self, size: int, duration_ns: int) -> None:
        """Adds the measurement of one batch."""
        self._by_size[size - 1].add(duration_ns)

    def ns(self, size: int) -> int:
        """The estimate for a batch of this size in nanoseconds; 0 if there is no recent measurement of any size.

        For a size without a measurement, it is the smaller of two limits: the latency of the next larger batch, and that
        of the next smaller batch scaled by the number of frames.
        """
        return self._estimate(size, attrgetter("ns"))

    def median_ns(self, size: int) -> int:
        """Same as `ns`, from the medians."""
        return self._estimate(size, attrgetter("median_ns"))

    def fastest_ns(self, size: int) -> int:
        """Same as `ns`, from the fastest measurements."""
        return self._estimate(size, attrgetter("fastest_ns"))

    def _estimate(self, size: int, latency_of: Callable[[LatencyEstimator], int]) -> int:
        if exact := latency_of(self._by_size[size - 1]):
            return exact
        smaller = ((known * size) // n for n in range(size - 1, 0, -1) if (known := latency_of(self._by_size[n - 1])))
        larger = (known for each in self._by_size[size:] if (known := latency_of(each)))
        return min((limit for limit in (next(smaller, 0), next(larger, 0)) if limit), default=0)
