"""Significance tests between two groups of runs, with one value per run, and the comparison of two samples of latencies.

Frames and samples within a run are not independent of each other (pseudo-replication, Hurlbert 1984), because they share
the conditions of that run. The tests therefore compare one value per run, never single frames. docs/explanation/statistics.md
explains which test applies when.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from scipy import stats

from analysis.statistics.bootstrap import Floats
from analysis.statistics.description import IntervalEstimate
from shared.runlog.mean_interval import CONFIDENCE, MIN_RUNS

PAIRED: Final = "paired t-test"
WELCH: Final = "Welch's t-test"


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The number, mean and standard deviation (n - 1; NaN for fewer than two) of a group's values."""

    count: int
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class RunTest:
    """The comparison of group b with group a. Without a test there is no interval and no p-value."""

    a: RunGroup
    b: RunGroup
    difference: IntervalEstimate  # Mean of b minus mean of a, with its simultaneous 95 % interval.
    p_value: float  # Two-sided, adjusted for the number of tests; NaN without a test.
    method: str  # PAIRED or WELCH; empty if there are too few runs for a test.
    basis: str  # Sample size: "3 blocks", "3 and 4 runs".
    tests: int  # Number of tests in the same family.

    @property
    def is_significant(self) -> bool:
        """True if the difference is significant; its interval then excludes 0."""
        return self.p_value < 1 - CONFIDENCE

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if not self.method:
            return f"too few runs for a test (n = {self.a.count} and {self.b.count})"
        if not self.is_significant:
            return "no significant difference"
        return "higher" if self.difference.value > 0 else "lower"


def compare_runs(pairs: Sequence[tuple[pd.Series, pd.Series]], *, in_blocks: bool) -> list[RunTest]:
    """Tests b against a for each pair; all pairs form one family of tests.

    Each series holds one value per run; NaN values (not measured) are skipped. If the runs were made in blocks (each
    group once per block, such as the repetitions of a study), the index of the series is the block, and the paired
    t-test (Student 1908) compares the groups within the blocks. Otherwise the groups are independent, and Welch's t-test
    (1947) applies. Bonferroni's method (Dunn 1961) adjusts p-values and intervals alike, so that they always agree.
    """
    groups = [(a.dropna().astype(np.float64), b.dropna().astype(np.float64)) for a, b in pairs]
    bases = [_basis(a, b, in_blocks=in_blocks) for a, b in groups]
    tests = sum(bool(basis) for basis in bases)
    return [_run_test(a, b, basis, tests, in_blocks=in_blocks) for (a, b), basis in zip(groups, bases, strict=True)]


def _basis(a: pd.Series, b: pd.Series, *, in_blocks: bool) -> str:
    """Returns the sample size of a test; empty if there are too few runs for one."""
    if in_blocks:
        blocks = len(a.index.intersection(b.index))
        return f"{blocks} blocks" if blocks >= MIN_RUNS else ""
    return f"{len(a)} and {len(b)} runs" if min(len(a), len(b)) >= MIN_RUNS else ""


def _run_test(a: pd.Series, b: pd.Series, basis: str, tests: int, *, in_blocks: bool) -> RunTest:
    group_a, group_b = (RunGroup(len(values), float(values.mean()), float(values.std())) for values in (a, b))
    if not basis:
        return RunTest(group_a, group_b, IntervalEstimate(group_b.mean - group_a.mean), math.nan, "", "", tests)
    if in_blocks:
        blocks = a.index.intersection(b.index)
        a, b = a[blocks], b[blocks]
    difference = float(b.mean() - a.mean())
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):  # Equal values have no t statistic.
        found = stats.ttest_rel(b, a) if in_blocks else stats.ttest_ind(b, a, equal_var=False)
        interval = found.confidence_interval(1 - (1 - CONFIDENCE) / tests)
    method = PAIRED if in_blocks else WELCH
    if not math.isfinite(found.statistic):  # Without variation between runs, any difference is certain.
        estimate = IntervalEstimate(difference, difference, difference)
        return RunTest(group_a, group_b, estimate, 0.0 if difference else 1.0, method, basis, tests)
    estimate = IntervalEstimate(difference, float(interval.low), float(interval.high))
    return RunTest(group_a, group_b, estimate, min(1.0, tests * float(found.pvalue)), method, basis, tests)


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
    """Compares b with a for each pair; all pairs form one family of tests, see `compare_runs`.

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
    if min(len(a), len(b)) < 2:  # One value has no standard deviation
        return math.nan
    pooled = math.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / degrees)
    return float(b.mean() - a.mean()) / pooled * (1 - 3 / (4 * degrees - 1)) if pooled > 0 else math.nan


def _probability_lower(a: Floats, b: Floats) -> float:
    if not (len(a) and len(b)):
        return math.nan
    return 1 - float(stats.mannwhitneyu(b, a, method="asymptotic").statistic) / (len(a) * len(b))
