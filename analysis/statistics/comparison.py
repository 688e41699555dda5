"""Compares the latencies of two samples of frames and tests the difference between their runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.statistics.bootstrap import Floats
from analysis.statistics.description import IntervalEstimate
from analysis.statistics.run_test import MIN_RUNS, RunTest, compare_runs

_NEGLIGIBLE_SHARE = 0.01  # Differences below this share of a's median are called small or negligible.
_MIN_PRINTED_P = 0.001


def comparison_sentence(a: str, b: str, test: RunTest) -> str:
    """Describes the difference between the median latencies of b and a, in milliseconds, and the result of the test."""
    if not math.isfinite(test.difference.value):
        return f"The medians of {b} and {a} cannot be compared: {b if not test.b.count else a} has no answered frame."
    if not test.method:
        return f"{_observed_difference(a, b, test)}; {test.verdict}: at least {MIN_RUNS} runs of each are needed."
    difference = test.difference
    digits = _digits(difference.high - difference.low)
    interval = f"{_number(difference.low, digits)} to {_number(difference.high, digits)} ms"
    evidence = f"95 % interval {interval}; {test.method} over {test.basis}, {p_text(test.p_value)}"
    if test.tests > 1:
        evidence += f" adjusted for {test.tests} comparisons"
    if test.is_significant:
        longer = "longer" if difference.value > 0 else "less"
        took = f"At the median, {b} took {abs(difference.value):.{digits}f} ms {longer} than {a}"
        return f"{took} ({evidence}){_size_remark(test)}."
    remark = "this does not show that they are equal"
    if _largest_share(test) < _NEGLIGIBLE_SHARE:
        remark = f"any difference is below {_NEGLIGIBLE_SHARE * 100:.0f} % of the median"
    return f"The medians of {a} and {b} do not differ significantly ({evidence}); {remark}."


def p_text(p_value: float) -> str:
    """Formats a p-value as "p = 0.012" or "p < 0.001", never as 0."""
    return f"p < {_MIN_PRINTED_P}" if p_value < _MIN_PRINTED_P else f"p = {p_value:.3f}"


def _observed_difference(a: str, b: str, test: RunTest) -> str:
    """Describes the observed runs, without a claim about other runs."""
    value = test.difference.value
    digits = _digits(abs(value))
    medians = f"{_number(test.b.mean, digits)} against {_number(test.a.mean, digits)} ms"
    if not value:
        return f"The median of {b} was the same as that of {a} in these runs ({medians})"
    size = f"{abs(value):.{digits}f} ms {'higher' if value > 0 else 'lower'}"
    return f"The median of {b} was {size} than that of {a} in these runs ({medians})"


def _size_remark(test: RunTest) -> str:
    """Points out a difference that is too small to matter; empty for a larger one."""
    share = _share(test, test.difference.value)
    if _largest_share(test) < _NEGLIGIBLE_SHARE:
        return f", but this is negligible: {share * 100:.2f} % of the median"
    return f", but this is small: {share * 100:.1f} % of the median" if share < _NEGLIGIBLE_SHARE else ""


def _largest_share(test: RunTest) -> float:
    """Returns the end of the interval that is further from 0, as a share of a's median."""
    return max(_share(test, test.difference.low), _share(test, test.difference.high))


def _share(test: RunTest, difference: float) -> float:
    return abs(difference) / test.a.mean if test.a.mean else math.inf


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _digits(width: float) -> int:
    """Returns the number of decimals that shows two significant digits of `width`; at most three (a microsecond)."""
    return min(3, max(0, 1 - math.floor(math.log10(width)))) if width > 0 else 3


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
