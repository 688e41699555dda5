"""Percentiles of samples; p99 only of at least 100 values, and p99.9 only of at least 1,000."""

from typing import Final

import numpy as np
import numpy.typing as npt

MINIMUM_COUNTS: Final = {99.0: 100, 99.9: 1000}  # Smaller samples have no value beyond the percentile.
MISSING: Final = "–"
NOTE: Final = f"{MISSING}: p99 is shown from 100 values, p99.9 from 1,000."


def has_percentile(percent: float, count: int) -> bool:
    """Returns whether a sample of `count` values is large enough for a percentile."""
    return count >= MINIMUM_COUNTS.get(percent, 1)


def percentiles(values: npt.ArrayLike, percents: tuple[float, ...]) -> list[float]:
    """Returns linearly interpolated percentiles; NaN for each that the sample is too small for."""
    sample = np.asarray(values, np.float64)
    return [
        float(np.percentile(sample, percent)) if has_percentile(percent, sample.size) else np.nan
        for percent in percents
    ]


def shown(value: float | None, digits: int = 2) -> str:
    """Formats a value, or a dash for None and NaN."""
    return MISSING if value is None or np.isnan(value) else f"{value:.{digits}f}"
