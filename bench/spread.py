"""The few numbers that stand for many."""

from collections.abc import Sequence

import numpy as np


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, median, 95th and 99th percentile (linear interpolation), in the unit of `values`."""
    low, p50, p95, p99 = (float(value) for value in np.percentile(values, (0, 50, 95, 99)))
    return {"min": low, "median": p50, "p95": p95, "p99": p99}
