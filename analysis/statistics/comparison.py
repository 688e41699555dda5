"""Compares the latencies of two samples of frames and tests the difference between their runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.statistics.bootstrap import Floats
from analysis.statistics.comparison_text import comparison_sentence
from analysis.statistics.description import IntervalEstimate
from analysis.statistics.run_test import RunTest, compare_runs


@dataclass(frozen=True, slots=True)
class LatencySample:
    """Latencies to compare, in milliseconds; NaN values are skipped."""

    name: str
    latencies: pd.Series
    runs: pd.Series | None = None  # The run (in a study: the block) of each latency; None if all are of one run.


@dataclass(frozen=True, slots=True)
class LatencyComparison:
    """The comparison of sample b with sample a; values that do not apply or cannot be computed are NaN."""

    a: str
    b: str
    count_a: int  # Number of frames.
    count_b: int
    runs_a: int
    runs_b: int
    difference: IntervalEstimate  # Mean of b's run medians minus mean of a's run medians, ms.
    ratio: IntervalEstimate  # Geometric mean of b's run medians over that of a's.
    method: str  # Name of the test; empty if there are too few runs.
    p_value: float  # Adjusted for the number of comparisons in the family.
    hedges_g: float  # Positive if b is higher.
    probability_b_lower: float  # Probability that a random frame of b is below a random frame of a; ties count half.
    verdict: str
    sentence: str


def compare_latencies(
    pairs: Sequence[tuple[LatencySample, LatencySample]], *, in_blocks: bool
) -> list[LatencyComparison]:
    """Compares b with a for each pair; all pairs form one family of tests (see analysis.statistics.run_test).

    The tested value of a run is the median of its frames. `hedges_g` is the difference of the frames' means in pooled
    standard deviations, with the small-sample factor of Hedges (1981). `hedges_g` and `probability_b_lower` describe
    these frames only, not other runs.
    """
    measured = [(_without_nan(a), _without_nan(b)) for a, b in pairs]
    medians = [(_run_medians(a), _run_medians(b)) for a, b in measured]
    tests = compare_runs(medians, in_blocks=in_blocks)
    logarithms = [(_logarithms(a), _logarithms(b)) for a, b in medians]
    ratios = [_ratio(each) for each in compare_runs(logarithms, in_blocks=in_blocks)]
    return [_comparison(a, b, test, ratio) for (a, b), test, ratio in zip(measured, tests, ratios, strict=True)]


def _without_nan(sample: LatencySample) -> LatencySample:
    is_measured = np.isfinite(sample.latencies.to_numpy(np.float64, na_value=np.nan))
    runs = None if sample.runs is None else sample.runs[is_measured]
    return LatencySample(sample.name, sample.latencies[is_measured].astype(np.float64), runs)


def _run_medians(sample: LatencySample) -> pd.Series:
    runs = pd.Series(0, sample.latencies.index) if sample.runs is None else sample.runs
    return sample.latencies.groupby(runs.to_numpy()).median()


def _logarithms(medians: pd.Series) -> pd.Series:
    """Returns logarithms of durations; NaN for a duration of 0, which has no ratio."""
    return np.log(medians.where(medians > 0))


def _ratio(test: RunTest) -> IntervalEstimate:
    difference = test.difference
    return IntervalEstimate(*(math.exp(end) for end in (difference.value, difference.low, difference.high)))


def _comparison(a: LatencySample, b: LatencySample, test: RunTest, ratio: IntervalEstimate) -> LatencyComparison:
    frames_a, frames_b = (sample.latencies.to_numpy(np.float64) for sample in (a, b))
    return LatencyComparison(
        a=a.name,
        b=b.name,
        count_a=len(frames_a),
        count_b=len(frames_b),
        runs_a=test.a.count,
        runs_b=test.b.count,
        difference=test.difference,
        ratio=ratio,
        method=test.method,
        p_value=test.p_value,
        hedges_g=_hedges_g(frames_a, frames_b),
        probability_b_lower=_probability_lower(frames_a, frames_b),
        verdict=test.verdict,
        sentence=comparison_sentence(a.name, b.name, test),
    )


def _hedges_g(a: Floats, b: Floats) -> float:
    degrees = len(a) + len(b) - 2
    if min(len(a), len(b)) < 2:  # noqa: PLR2004 (one value has no standard deviation)
        return math.nan
    pooled = math.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / degrees)
    return float(b.mean() - a.mean()) / pooled * (1 - 3 / (4 * degrees - 1)) if pooled > 0 else math.nan


def _probability_lower(a: Floats, b: Floats) -> float:
    if not (len(a) and len(b)):
        return math.nan
    return 1 - float(stats.mannwhitneyu(b, a, method="asymptotic").statistic) / (len(a) * len(b))
