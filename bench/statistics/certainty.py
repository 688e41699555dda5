"""How sure a figure of a sample is, whose frames follow one another and whose runs differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bench.statistics.bootstrap import CONFIDENCE, Bootstrap, Floats, bounds, dependence
from bench.statistics.description import Estimate, enough

_CLUSTERS = 3  # Runs a side from which it can be told how far runs differ.


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one or several runs, run after run, in time order within each."""

    observed: Floats
    lengths: tuple[int, ...]
    block_lengths: tuple[int, ...]
    effective_count: float

    @classmethod
    def of(cls, runs: Sequence[Floats]) -> "Series":
        """Join runs, each of at least one value."""
        hang = [dependence(run) for run in runs]
        return cls(
            np.concatenate(runs) if runs else np.empty(0),
            tuple(len(run) for run in runs),
            tuple(each.block_length for each in hang),
            sum(each.effective_count for each in hang),
        )

    @property
    def is_enough(self) -> bool:
        """Whether ten effective values lie on either side of the median."""
        return enough(self.effective_count / 2)

    @property
    def mean_variance(self) -> float:
        """The squared standard error of the mean as this run's, or these runs', frames tell it."""
        return float(self.observed.var(ddof=1)) / self.effective_count

    def draw(self, seed: int) -> Bootstrap:
        """Draw anew, in blocks within each run; the runs themselves stay."""
        return Bootstrap(self.lengths, self.block_lengths, seed)

    def by_run(self, figure: Callable[[Floats], float], values: Floats | None = None) -> Floats:
        """A figure of every run; `values`: what to take it of instead, one for each of the series'."""
        runs = np.split(self.observed if values is None else values, np.cumsum(self.lengths)[:-1])
        return np.array([figure(run) for run in runs], np.float64)


@dataclass(frozen=True, slots=True)
class Error:
    """The squared standard error of a difference between two sides, and its degrees of freedom."""

    variance: float
    degrees: float

    @classmethod
    def welch(cls, parts: Sequence[float], degrees: Sequence[float]) -> "Error":
        """Of two independent sides: the sum, with the degrees of Welch and Satterthwaite."""
        total = sum(parts)
        if not total > 0:
            return cls(0.0, sum(degrees))
        shares = sum((part / total) ** 2 / each for part, each in zip(parts, degrees, strict=True))
        return cls(total, 1 / shares)

    def with_runs(self, a: Floats, b: Floats) -> "Error":
        """The error where how far the runs' figures (`a`, `b`: one a run) lie apart is taken in too.

        From three runs a side, their variance over their number counts where it is the greater: the frames of a run
        share whatever that run met, so they are no more independent than their runs. The degrees are then the runs'.
        """
        if not are_clusters(len(a), len(b)):
            return self
        between = Error.welch([runs.var(ddof=1) / len(runs) for runs in (a, b)], [len(a) - 1, len(b) - 1])
        return Error(max(self.variance, between.variance), between.degrees)

    def p_value(self, difference: float) -> float:
        """Two-sided, by Student's t."""
        if not self.variance > 0:
            return math.nan
        return float(2 * stats.t.sf(abs(difference) / math.sqrt(self.variance), self.degrees))

    def around(self, value: float) -> Estimate:
        """The value with its interval of 95 %, by Student's t."""
        reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.degrees)) * math.sqrt(self.variance)
        return Estimate(value, value - reach, value + reach)


def are_clusters(*runs: int) -> bool:
    """Whether there are runs enough, on every side, to tell how far runs differ."""
    return min(runs) >= _CLUSTERS


def interval(value: float, replicates: Floats, blocks: int, a: Floats, b: Floats) -> Estimate:
    """The interval of a difference from its bootstrap replicates and its runs' figures.

    Below three runs a side: the replicates' expanded percentiles, which tell of these runs alone. From three on:
    Student's t, with the replicates' variance or that between the runs, whichever is greater. The runs are not drawn
    anew: three runs give ten different draws, whose spread is a third too small and whose percentiles know no t.
    """
    if not are_clusters(len(a), len(b)):
        return Estimate(value, *bounds(replicates, blocks - 1))
    return Error(float(replicates.var(ddof=1)), math.inf).with_runs(a, b).around(value)
