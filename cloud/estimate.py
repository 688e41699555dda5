"""An estimate of how long work takes, from how long it took lately."""

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
        return self._ns if clock.now_ns() - self._added_ns < _STALE_NS else 0

    def add(self, took_ns: int) -> None:
        """It took so long this time."""
        with self._lock:
            self._recent_ns.append(took_ns)
            self._added_ns = clock.now_ns()
            self._ns = sorted(self._recent_ns)[int(_SHARE * (len(self._recent_ns) - 1))]
