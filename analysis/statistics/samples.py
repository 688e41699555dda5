"""Statistics of small samples: percentiles, a robust slope, fairness of shares, busy time."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shared.runlog.percentiles import percentiles

PERCENTILES = {"min": 0.0, "median": 50.0, "p95": 95.0, "p99": 99.0}
_MAX_SLOPE_SAMPLES = 1000  # Half a million pairs; longer series are thinned evenly.


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Minimum, median, 95th and 99th percentile, in the unit of `values`; None where the sample is too small for one."""
    found = percentiles(values, tuple(PERCENTILES.values()))
    return {name: None if math.isnan(value) else value for name, value in zip(PERCENTILES, found, strict=True)}


def slope(times: Sequence[float], values: Sequence[float]) -> float | None:
    """The median slope of all pairs of samples (Theil 1950, Sen 1968), in units of `values` per unit of `times`.

    Single jumps do not move it. Of more than 1,000 samples, 1,000 are used, evenly spaced. None if there are fewer than two
    different times.
    """
    if len(times) < 2:  # A slope needs two points
        return None
    chosen = np.linspace(0, len(times) - 1, min(len(times), _MAX_SLOPE_SAMPLES)).round().astype(int)
    at, level = np.asarray(times, float)[chosen], np.asarray(values, float)[chosen]
    first, second = np.triu_indices(len(at), k=1)
    distance = at[second] - at[first]
    rises = (level[second] - level[first])[distance > 0] / distance[distance > 0]
    return float(np.median(rises)) if len(rises) else None


def jain(shares: Sequence[float]) -> float:
    """Jain's index, (Σx)² / (n·Σx²): 1 if all shares are equal, 1/n if one has everything; 1 if all shares are 0.

    Jain, Chiu and Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def max_min_shares(demands: Sequence[float], capacity: float) -> list[float]:
    """The max-min fair shares of `capacity`: no share exceeds its demand, and larger demands share the rest equally.

    Progressive filling: a demand below an equal part of the rest is met completely (Bertsekas and Gallager, "Data
    Networks", 1992, section 6.5.2).
    """
    shares = [0.0] * len(demands)
    rest = capacity
    for done, place in enumerate(sorted(range(len(demands)), key=lambda place: demands[place])):
        shares[place] = min(demands[place], rest / (len(demands) - done))
        rest -= shares[place]
    return shares


def busy_time(spans: Sequence[tuple[int, int]]) -> int:
    """The time that is covered by at least one of the (begin, end) spans, in their unit."""
    busy = 0
    covered_until = min((begin for begin, _ in spans), default=0)
    for begin, end in sorted(spans):
        busy += max(0, end - max(begin, covered_until))
        covered_until = max(covered_until, end)
    return busy


def busy_share(spans: Sequence[tuple[int, int]]) -> float:
    """`busy_time` divided by the time from the first begin to the last end, 0 to 1; 0 without spans."""
    if not spans:
        return 0.0
    return busy_time(spans) / max(1, max(end for _, end in spans) - min(begin for begin, _ in spans))
