"""The test behind every verdict: two groups of runs, with one figure for each run.

Frames and samples within a run are not independent of each other (pseudo-replication, Hurlbert 1984): they share whatever
that run met. A figure of each run is therefore tested, never the frames. docs/statistics.md says which test is used when.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from bench.statistics.bootstrap import CONFIDENCE, Floats
from bench.statistics.description import Estimate

LEAST_RUNS: Final = 3  # Runs on each side, or blocks, below which nothing is tested.
PAIRED: Final = "paired t-test"
WELCH: Final = "Welch's t-test"


@dataclass(frozen=True, slots=True)
class Group:
    """The figures of one side: their number, mean and standard deviation (n - 1; NaN for fewer than two)."""

    count: int
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class RunTest:
    """b against a, as the runs show it. Without a test there is no interval and no p-value."""

    a: Group
    b: Group
    difference: Estimate  # Mean of b minus mean of a, with its simultaneous 95 % interval.
    p_value: float  # Two-sided, adjusted for the number of tests; NaN without a test.
    method: str  # PAIRED or WELCH; empty where the runs are too few.
    basis: str  # The sample size: "3 blocks", "3 and 4 runs".
    tests: int  # The number of tests made together.

    @property
    def is_shown(self) -> bool:
        """Whether the test shows a difference; the interval then excludes 0 as well."""
        return self.p_value < 1 - CONFIDENCE

    @property
    def verdict(self) -> str:
        """The answer in a few words."""
        if not self.method:
            return f"too few runs to tell (n = {self.a.count} and {self.b.count})"
        if not self.is_shown:
            return "no difference shown"
        return "higher" if self.difference.value > 0 else "lower"


class _Error(NamedTuple):
    """A difference of means with its standard error."""

    difference: float
    standard_error: float
    degrees: float
    method: str
    basis: str


def compare_runs(pairs: Sequence[tuple[pd.Series, pd.Series]], *, in_blocks: bool) -> list[RunTest]:
    """Test b against a for each pair, all of them together as one family.

    Each series holds one figure for each run; NaN ones were not measured and are left out. Where runs were made in blocks
    (every side once in each, as a study's repetitions), the index is the block, and the differences within the blocks are
    tested by the paired t-test (Student 1908). Otherwise the sides are independent: Welch's t-test (1947). P-values and
    intervals are adjusted for the number of tests by Bonferroni's method (Dunn 1961), so that both always agree.
    """
    sides = [(a.dropna().astype(np.float64), b.dropna().astype(np.float64)) for a, b in pairs]
    errors = [_paired(a, b) if in_blocks else _welch(a, b) for a, b in sides]
    tests = sum(error is not None for error in errors)
    return [_result(a, b, error, tests) for (a, b), error in zip(sides, errors, strict=True)]


def _group(figures: pd.Series) -> Group:
    count = len(figures)
    return Group(
        count,
        float(figures.mean()) if count else math.nan,
        float(figures.std(ddof=1)) if count > 1 else math.nan,
    )


def _paired(a: pd.Series, b: pd.Series) -> _Error | None:
    apart: Floats = (b - a).dropna().to_numpy(np.float64)  # Aligned by the index, which is the block.
    count = len(apart)
    if count < LEAST_RUNS:
        return None
    error = float(apart.std(ddof=1)) / math.sqrt(count)
    return _Error(float(apart.mean()), error, count - 1, PAIRED, f"{count} blocks")


def _welch(a: pd.Series, b: pd.Series) -> _Error | None:
    if min(len(a), len(b)) < LEAST_RUNS:
        return None
    parts = [float(side.var(ddof=1)) / len(side) for side in (a, b)]
    total = sum(parts)
    spread = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True))
    degrees = total**2 / spread if spread > 0 else float(len(a) + len(b) - 2)
    return _Error(float(b.mean() - a.mean()), math.sqrt(total), degrees, WELCH, f"{len(a)} and {len(b)} runs")


def _result(a: pd.Series, b: pd.Series, error: _Error | None, tests: int) -> RunTest:
    of_a, of_b = _group(a), _group(b)
    if error is None:
        return RunTest(of_a, of_b, Estimate(of_b.mean - of_a.mean), math.nan, "", "", tests)
    reach = float(stats.t.ppf(1 - (1 - CONFIDENCE) / (2 * tests), error.degrees)) * error.standard_error
    difference = Estimate(error.difference, error.difference - reach, error.difference + reach)
    return RunTest(of_a, of_b, difference, _p_value(error, tests), error.method, error.basis, tests)


def _p_value(error: _Error, tests: int) -> float:
    if not error.standard_error > 0:  # The runs do not vary: any difference is certain, and none is none.
        return 0.0 if error.difference else 1.0
    single = 2 * float(stats.t.sf(abs(error.difference) / error.standard_error, error.degrees))
    return min(1.0, tests * single)
