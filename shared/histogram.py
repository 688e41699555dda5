"""Histograms with fixed buckets, as Prometheus stores them; adding a value costs about a microsecond."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

# Upper bounds of the buckets of durations (s): from one step of a frame at the vehicle to a frame that waits.
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)


class Histogram:
    """Counts values by bucket. Not thread-safe: its owner locks."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """`bounds`: the inclusive upper bounds of the buckets, in ascending order; a last one is added without a bound."""
        self.total = 0.0  # Sum of all values.
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def buckets(self) -> list[tuple[str, int]]:
        """The bounds as text, "+Inf" the last, each with the number of values up to it."""
        bounds = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))
