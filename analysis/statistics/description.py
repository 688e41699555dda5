"""Descriptive statistics of one latency sample, with confidence intervals."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from analysis.statistics.bootstrap import BlockBootstrap, Floats, measure_dependence, percentile_interval
from shared.runlog.mean_interval import mean_interval
from shared.runlog.percentiles import percentiles

MIN_EFFECTIVE_COUNT: Final = 10  # Effective values required on each side of a percentile, or for a mean.
SHARES: Final = (0.25, 0.5, 0.75, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A value with its 95 % confidence interval; the ends are NaN if the sample is too small for an interval."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class SampleDescription:
    """Statistics in the unit of the values; NaN where the sample is too small.

    `effective_count` is the number of independent values that would estimate the mean as precisely. `std` is the sample
    standard deviation (n - 1).
    """

    count: int
    effective_count: float
    mean: IntervalEstimate
    p25: IntervalEstimate
    p50: IntervalEstimate
    p75: IntervalEstimate
    p95: IntervalEstimate
    p99: IntervalEstimate
    p99_9: IntervalEstimate
    minimum: float
    maximum: float
    std: float


def describe(values: npt.ArrayLike, *, seed: int = 0) -> SampleDescription:
    """Describes values in time order, shape (n,); NaN values (not measured) are skipped.

    Percentiles are linearly interpolated between order statistics, as in NumPy and pandas; p99 and p99.9 are NaN if the
    sample is too small for them (see shared.runlog.percentiles). The 95 % intervals come from a block bootstrap with
    1,000 replicates. A percentile needs ten effective values on each side for an interval, and a mean needs ten in all:
    p99 has an interval from 1,000 independent values on, p99.9 from 10,000.
    """
    measured = np.asarray(values, np.float64).ravel()
    measured = measured[np.isfinite(measured)]
    dependence = measure_dependence(measured)
    effective = dependence.effective_count
    estimates = [IntervalEstimate(value) for value in _mean_and_percentiles(measured)]
    if supports_interval(effective):
        bootstrap = BlockBootstrap(len(measured), dependence.block_length, seed)
        replicates = np.column_stack((bootstrap.means(measured), bootstrap.quantiles(measured, SHARES)))
        effective_counts = (effective, *(effective * min(share, 1 - share) for share in SHARES))
        estimates = [
            IntervalEstimate(estimate.value, *percentile_interval(column, bootstrap.blocks - 1))
            if supports_interval(count)
            else estimate
            for estimate, count, column in zip(estimates, effective_counts, replicates.T, strict=True)
        ]
    lowest, highest = (measured.min(), measured.max()) if len(measured) else (math.nan, math.nan)
    std = float(measured.std(ddof=1)) if len(measured) > 1 else math.nan
    mean, p25, p50, p75, p95, p99, p99_9 = estimates
    return SampleDescription(
        len(measured), effective, mean, p25, p50, p75, p95, p99, p99_9, float(lowest), float(highest), std
    )


def mean_of_runs(values: npt.ArrayLike, *, share_of: float | None = None) -> IntervalEstimate:
    """Returns the mean of independent runs with its interval, see `mean_interval`; NaN values (not measured) are skipped."""
    runs = np.asarray(values, np.float64).ravel()
    runs = runs[np.isfinite(runs)]
    mean = float(runs.mean()) if len(runs) else math.nan
    return IntervalEstimate(mean, *mean_interval(runs.tolist(), share_of=share_of))


def supports_interval(effective_count: float) -> bool:
    """Returns whether this many effective values, on the smaller side of a percentile, support an interval."""
    return effective_count >= MIN_EFFECTIVE_COUNT - 1e-9  # 1,000 × 0.01 is slightly below 10 in floating point.


def _mean_and_percentiles(measured: Floats) -> list[float]:
    if not len(measured):
        return [math.nan] * (1 + len(SHARES))
    return [float(measured.mean()), *percentiles(measured, tuple(100 * share for share in SHARES))]
