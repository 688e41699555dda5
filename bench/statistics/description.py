"""What a sample says of the run it came from, and how surely."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bench.statistics.bootstrap import BlockBootstrap, Floats, measure_dependence, percentile_interval
from shared.runlog.percentiles import percentiles

MIN_EFFECTIVE_COUNT: Final = (
    10  # Effective values that must lie on either side of a percentile, or carry a mean, for an interval.
)
SHARES: Final = (0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
_NAN: Final = math.nan


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A figure and the interval that holds the truth in 95 of 100 such runs; nan bounds: the sample cannot give one."""

    value: float
    low: float = _NAN
    high: float = _NAN


@dataclass(frozen=True, slots=True)
class SampleDescription:
    """A sample in a few figures, in the unit of its values; nan where there are too few values to tell.

    `effective_count`: so many independent values would tell as much of the mean. `std`: of the sample, n - 1.
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
    """Describe values given in time order, shape (n,); those that were not measured (nan) are left out.

    Percentiles are linearly interpolated between order statistics, as NumPy and pandas do; p99 and p99.9 are NaN where the
    sample is too small for them (shared.runlog.percentiles). The intervals are of 95 %, by
    a block bootstrap of 1,000 replicates from `seed` (bench.statistics.bootstrap). A percentile with fewer than ten effective
    values on either side gets no bounds, nor a mean of fewer than ten: so few cannot tell how far they stray. So
    p99 gets its interval from 1,000 independent values on, p99.9 from 10,000.
    """
    known = _measured(values)
    hang = measure_dependence(known)
    figures = _figures(known)
    carried = (hang.effective_count, *(hang.effective_count * min(share, 1 - share) for share in SHARES))
    estimates = [IntervalEstimate(figure) for figure in figures]
    if supports_interval(hang.effective_count):
        drawn = BlockBootstrap(len(known), hang.block_length, seed)
        replicates = np.column_stack((drawn.means(known), drawn.quantiles(known, SHARES)))
        estimates = [
            IntervalEstimate(figure, *percentile_interval(column, drawn.blocks - 1))
            if supports_interval(effective)
            else IntervalEstimate(figure)
            for figure, effective, column in zip(figures, carried, replicates.T, strict=True)
        ]
    mean, p25, p50, p75, p95, p99, p99_9 = estimates
    return SampleDescription(
        count=len(known),
        effective_count=hang.effective_count,
        mean=mean,
        p25=p25,
        p50=p50,
        p75=p75,
        p95=p95,
        p99=p99,
        p99_9=p99_9,
        minimum=float(known.min()) if len(known) else _NAN,
        maximum=float(known.max()) if len(known) else _NAN,
        std=float(known.std(ddof=1)) if len(known) > 1 else _NAN,
    )


def supports_interval(effective: float) -> bool:
    """Whether so many effective values, on the emptier side, carry an interval."""
    return effective >= MIN_EFFECTIVE_COUNT - 1e-9  # 1,000 × 0.01 is not quite ten to a computer.


def _measured(values: npt.ArrayLike) -> Floats:
    """The values that are numbers, in their order."""
    series = np.asarray(values, np.float64).ravel()
    return series[np.isfinite(series)]


def _figures(known: Floats) -> list[float]:
    """The mean and the percentiles."""
    if not len(known):
        return [_NAN] * (1 + len(SHARES))
    return [float(known.mean()), *percentiles(known, tuple(100 * share for share in SHARES))]
