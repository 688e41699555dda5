"""Significance tests between two groups of runs, with one value per run.

Frames and samples within a run are not independent of each other (pseudo-replication, Hurlbert 1984), because they share
the conditions of that run. The tests therefore compare one value per run, never single frames. docs/explanation/statistics.md
explains which test applies when.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from bench.statistics.bootstrap import CONFIDENCE, Floats
from bench.statistics.description import IntervalEstimate

MIN_RUNS: Final = 3  # Minimum number of runs in each group, or of blocks, for a test.
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


class _MeanDifference(NamedTuple):
    """A difference of means with its standard error."""

    difference: float
    standard_error: float
    degrees: float
    method: str
    basis: str


def compare_runs(pairs: Sequence[tuple[pd.Series, pd.Series]], *, in_blocks: bool) -> list[RunTest]:
    """Tests b against a for each pair; all pairs form one family of tests.

    Each series holds one value per run; NaN values (not measured) are skipped. If the runs were made in blocks (each
    group once per block, such as the repetitions of a study), the index of the series is the block, and the paired
    t-test (Student 1908) compares the groups within the blocks. Otherwise the groups are independent, and Welch's t-test
    (1947) applies. Bonferroni's method (Dunn 1961) adjusts p-values and intervals alike, so that they always agree.
    """
    groups = [(a.dropna().astype(np.float64), b.dropna().astype(np.float64)) for a, b in pairs]
    differences = [_paired(a, b) if in_blocks else _welch(a, b) for a, b in groups]
    tests = sum(difference is not None for difference in differences)
    return [_result(a, b, difference, tests) for (a, b), difference in zip(groups, differences, strict=True)]


def _group(values: pd.Series) -> RunGroup:
    count = len(values)
    return RunGroup(
        count,
        float(values.mean()) if count else math.nan,
        float(values.std(ddof=1)) if count > 1 else math.nan,
    )


def _paired(a: pd.Series, b: pd.Series) -> _MeanDifference | None:
    differences: Floats = (b - a).dropna().to_numpy(np.float64)  # Aligned by the index, which is the block.
    count = len(differences)
    if count < MIN_RUNS:
        return None
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    return _MeanDifference(float(differences.mean()), error, count - 1, PAIRED, f"{count} blocks")


def _welch(a: pd.Series, b: pd.Series) -> _MeanDifference | None:
    if min(len(a), len(b)) < MIN_RUNS:
        return None
    squared_errors = [float(group.var(ddof=1)) / len(group) for group in (a, b)]
    total = sum(squared_errors)
    spread = sum(error**2 / (len(group) - 1) for error, group in zip(squared_errors, (a, b), strict=True))
    degrees = total**2 / spread if spread > 0 else float(len(a) + len(b) - 2)
    return _MeanDifference(float(b.mean() - a.mean()), math.sqrt(total), degrees, WELCH, f"{len(a)} and {len(b)} runs")


def _result(a: pd.Series, b: pd.Series, found: _MeanDifference | None, tests: int) -> RunTest:
    group_a, group_b = _group(a), _group(b)
    if found is None:
        return RunTest(group_a, group_b, IntervalEstimate(group_b.mean - group_a.mean), math.nan, "", "", tests)
    margin = float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * tests), found.degrees)) * found.standard_error
    difference = IntervalEstimate(found.difference, found.difference - margin, found.difference + margin)
    return RunTest(group_a, group_b, difference, _p_value(found, tests), found.method, found.basis, tests)


def _p_value(found: _MeanDifference, tests: int) -> float:
    if not found.standard_error > 0:  # Without variation between runs, any difference is certain.
        return 0.0 if found.difference else 1.0
    single = 2 * float(stats.t.sf(abs(found.difference) / found.standard_error, found.degrees))
    return min(1.0, tests * single)
