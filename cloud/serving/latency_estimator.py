"""Estimates of how long work takes, from how long it took lately."""

import threading
from collections import deque

from shared import clock

_SAMPLES = 20
_SHARE = 0.9
_STALE_NS = 10_000_000_000


class Estimate:
    """So long at most did nine in ten of the last twenty take. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent_ns: deque[int] = deque(maxlen=_SAMPLES)
        self._added_ns = 0
        self._ns = 0

    @property
    def ns(self) -> int:
        """Nanoseconds; 0 where nothing is known, or nothing new for ten seconds.

        Who is refused for want of time adds no figure, so that a slow spell would be held against all who follow.
        """
        return 0 if self._is_stale else self._ns

    def add(self, took_ns: int) -> None:
        """It took so long this time."""
        with self._lock:
            if self._is_stale:
                self._recent_ns.clear()  # Or the first frame after a slow spell would bring the spell back.
            self._recent_ns.append(took_ns)
            self._added_ns = clock.now_ns()
            self._ns = sorted(self._recent_ns)[int(_SHARE * (len(self._recent_ns) - 1))]

    @property
    def _is_stale(self) -> bool:
        return clock.now_ns() - self._added_ns >= _STALE_NS


class BatchLatencyEstimator:
    """How long a batch takes, by its size: eight frames may take eight times as long as one, or no longer.

    Any thread may call it.
    """

    def __init__(self, largest: int) -> None:
        self._by_size = [Estimate() for _ in range(largest)]

    def add(self, size: int, took_ns: int) -> None:
        """A batch of so many took so long."""
        self._by_size[size - 1].add(took_ns)

    def ns(self, size: int) -> int:
        """Nanoseconds for a batch of so many; 0 where nothing is known.

        Of a size that was not seen lately: no more than the next larger one took, nor than the next smaller one did for
        each of its frames.
        """
        if exact := self._by_size[size - 1].ns:
            return exact
        smaller = ((known * size) // n for n in range(size - 1, 0, -1) if (known := self._by_size[n - 1].ns))
        larger = (known for each in self._by_size[size:] if (known := each.ns))
        return min((bound for bound in (next(smaller, 0), next(larger, 0)) if bound), default=0)
