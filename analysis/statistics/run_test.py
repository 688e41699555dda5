"""Significance tests between two groups of runs, with one value per run.

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

from analysis.statistics.bootstrap import CONFIDENCE
from analysis.statistics.description import IntervalEstimate

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
