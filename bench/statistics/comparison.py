"""Two samples side by side: how far apart they are, how surely, and what may be said of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from bench.statistics.bootstrap import Floats
from bench.statistics.certainty import Error, Series, are_clusters, interval
from bench.statistics.description import Estimate
from bench.statistics.pairing import Pairs, by_run, pair, rows_of
from bench.statistics.wording import Gap, sentence

_APART = 1_000_003  # Between the seeds of the two sides, so that they are not drawn alike.


@dataclass(frozen=True, slots=True)
class Sample:
    """Values to compare, milliseconds, in time order within a run; nan ones are left out."""

    name: str
    values: pd.Series
    keys: pd.Series | None = None  # What identifies the same frame in both samples.
    runs: pd.Series | None = None  # The run of each value; None: all are of one.


@dataclass(frozen=True, slots=True)
class Comparison:
    """b against a. What does not apply, or what the samples cannot tell, is nan."""

    a: str
    b: str
    paired: bool
    count_a: int
    count_b: int
    pairs: int
    runs_a: int
    runs_b: int
    difference: Estimate  # Median of b minus median of a, or the median of the paired differences; ms.
    ratio: Estimate  # Median of b over median of a; of the paired frames where they are paired.
    welch_p: float
    mann_whitney_p: float
    paired_t_p: float
    wilcoxon_p: float
    hedges_g: float  # Above 0: b is higher.
    probability_b_lower: float  # That a frame of b is below one of a, both drawn at random; a tie counts half.
    sentence: str


def compare(a: Sample, b: Sample, *, seed: int = 0) -> Comparison:
    """Compare two samples; how sure it is counts what the frames really tell.

    Frames of one run follow one another, so every test counts effective values (bench.statistics.bootstrap.dependence) instead of
    frames; and from three runs a side, how far the runs' own figures lie apart counts where that is more, with the
    runs' degrees of freedom (bench.statistics.certainty). With fewer runs the intervals and p-values tell of these runs alone, and
    the sentence says so. Fewer than 20 effective values a side and fewer than three runs give neither.

    - Paired where both have keys and at least half of the smaller side's frames are in both. A frame that several runs
      of a side answered counts with their mean. `paired_t_p`: the mean difference against 0, by Student's t.
      `wilcoxon_p`: the signed-rank statistic, asymptotic, its z times √(effective / pairs).
    - `welch_p`: Welch's t-test of the means over all frames. `mann_whitney_p`: the U statistic over all frames, with
      its variance under equality, corrected for ties, for the effective counts. With independent frames of one run
      these are SciPy's `ttest_ind(equal_var=False)` and `mannwhitneyu(method="asymptotic", use_continuity=False)`.
    - `hedges_g`: the difference of the means in pooled standard deviations, with Hedges' small-sample factor (1981).

    The sentence rests on the interval of the difference. The p-values are of single tests: for many, see `adjust`.
    """
    rows_a, rows_b = (rows_of(side.values, side.keys, side.runs) for side in (a, b))
    side_a, side_b = (by_run(rows["value"], rows["run"]) for rows in (rows_a, rows_b))
    pairs = pair(rows_a, rows_b)
    difference, ratio = _gap(side_a, side_b, seed) if pairs is None else _paired_gap(pairs, side_a, side_b, seed)
    welch_p, mann_whitney_p = _tests(side_a, side_b)
    paired_t_p, wilcoxon_p = (math.nan, math.nan) if pairs is None else _paired_tests(pairs)
    effective = (side_a.effective_count, side_b.effective_count)
    gap = Gap(
        a=a.name,
        b=b.name,
        difference=difference,
        median_a=_median(side_a.observed if pairs is None else pairs.a),
        counts=(len(side_a.observed), len(side_b.observed)),
        effective=effective if pairs is None else (pairs.difference.effective_count,),
        pairs=None if pairs is None else len(pairs.a),
        runs=(len(side_a.lengths), len(side_b.lengths)),
    )
    return Comparison(
        a=a.name,
        b=b.name,
        paired=pairs is not None,
        count_a=len(side_a.observed),
        count_b=len(side_b.observed),
        pairs=0 if pairs is None else len(pairs.a),
        runs_a=len(side_a.lengths),
        runs_b=len(side_b.lengths),
        difference=difference,
        ratio=ratio,
        welch_p=welch_p,
        mann_whitney_p=mann_whitney_p,
        paired_t_p=paired_t_p,
        wilcoxon_p=wilcoxon_p,
        hedges_g=_hedges_g(side_a.observed, side_b.observed),
        probability_b_lower=_probability_lower(side_a.observed, side_b.observed),
        sentence=sentence(gap),
    )


def adjust(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of many tests by Holm's method (1979).

    Taking those below 0.05 for differences is then wrong about any one of them in less than 5 of 100 such tables. One
    that is nan counts for no test and stays nan.
    """
    adjusted = np.array(p_values, np.float64)
    made = np.flatnonzero(np.isfinite(adjusted))
    order = made[np.argsort(adjusted[made], kind="stable")]
    raised = adjusted[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(raised))
    return [float(p) for p in adjusted]


def _gap(a: Series, b: Series, seed: int) -> tuple[Estimate, Estimate]:
    """Difference and ratio of the medians of two sides that were drawn apart."""
    medians = _median(a.observed), _median(b.observed)
    if not _tells(a, b):
        return _figures(*medians)
    drawn_a, drawn_b = a.draw(seed), b.draw(seed + _APART)
    replicates_a, replicates_b = (
        drawn.quantiles(side.observed, (0.5,))[:, 0] for drawn, side in ((drawn_a, a), (drawn_b, b))
    )
    blocks = min(drawn_a.blocks, drawn_b.blocks)
    runs = a.by_run(_median), b.by_run(_median)
    difference = interval(medians[1] - medians[0], replicates_b - replicates_a, blocks, *runs)
    return difference, _ratio(medians, (replicates_a, replicates_b), blocks, runs)


def _paired_gap(pairs: Pairs, a: Series, b: Series, seed: int) -> tuple[Estimate, Estimate]:
    """Median of the paired differences, and ratio of the medians, of frames drawn together."""
    medians = _median(pairs.a), _median(pairs.b)
    middle = _median(pairs.difference.observed)
    if not _tells_paired(pairs):
        return Estimate(middle), _figures(*medians)[1]
    drawn = pairs.difference.draw(seed)
    replicates_a, replicates_b, apart = (
        drawn.quantiles(values, (0.5,))[:, 0] for values in (pairs.a, pairs.b, pairs.difference.observed)
    )
    difference = interval(middle, apart, drawn.blocks, pairs.runs_a.by_run(_median), pairs.runs_b.by_run(_median))
    runs = a.by_run(_median), b.by_run(_median)
    return difference, _ratio(medians, (replicates_a, replicates_b), drawn.blocks, runs)


def _figures(median_a: float, median_b: float) -> tuple[Estimate, Estimate]:
    """Difference and ratio without bounds."""
    return Estimate(median_b - median_a), Estimate(median_b / median_a if median_a > 0 else math.nan)


def _ratio(
    medians: tuple[float, float], replicates: tuple[Floats, Floats], blocks: int, runs: tuple[Floats, Floats]
) -> Estimate:
    """The ratio of two medians; its interval is one of the difference of their logarithms."""
    if min(*medians, *(float(values.min()) for values in (*replicates, *runs))) <= 0:
        return _figures(*medians)[1]
    log_a, log_b = (np.log(values) for values in replicates)
    logs = interval(math.log(medians[1] / medians[0]), log_b - log_a, blocks, *(np.log(values) for values in runs))
    return Estimate(medians[1] / medians[0], math.exp(logs.low), math.exp(logs.high))


def _tests(a: Series, b: Series) -> tuple[float, float]:
    """The p-values of Welch's t-test and the Mann–Whitney U test."""
    if not _tells(a, b):
        return math.nan, math.nan
    parts, degrees = zip(*((side.mean_variance, side.effective_count - 1) for side in (a, b)), strict=True)
    error = Error.welch(parts, degrees).with_runs(a.by_run(_mean), b.by_run(_mean))
    welch_p = error.p_value(_mean(b.observed) - _mean(a.observed))
    both = len(a.observed) + len(b.observed)
    ranks_a, ranks_b = _ranks(a.observed, b.observed)
    tied = np.unique(np.concatenate((ranks_a, ranks_b)), return_counts=True)[1].astype(np.float64)
    room = 1 - float((tied**3 - tied).sum()) / (both**3 - both)
    of_a, of_b = a.effective_count, b.effective_count
    error = Error((of_a + of_b + 1) / (12 * of_a * of_b) * room, math.inf)
    error = error.with_runs(a.by_run(_mean, ranks_a), b.by_run(_mean, ranks_b))
    return welch_p, error.p_value(_mean(ranks_b) - _mean(ranks_a))


def _paired_tests(pairs: Pairs) -> tuple[float, float]:
    """The p-values of the paired t-test and Wilcoxon's signed-rank test."""
    apart = pairs.difference
    if not (_tells_paired(pairs) and np.ptp(apart.observed) > 0):
        return math.nan, math.nan
    runs = pairs.runs_a.by_run(_mean), pairs.runs_b.by_run(_mean)
    paired_t_p = Error(apart.mean_variance, apart.effective_count - 1).with_runs(*runs).p_value(_mean(apart.observed))
    error = Error(apart.mean_variance, math.inf).with_runs(*runs)
    effective = float(apart.observed.var(ddof=1)) / error.variance
    z = float(stats.wilcoxon(apart.observed, method="asymptotic").zstatistic)
    return paired_t_p, Error(len(apart.observed) / effective, error.degrees).p_value(z)


def _tells(a: Series, b: Series) -> bool:
    return are_clusters(len(a.lengths), len(b.lengths)) or (a.is_enough and b.is_enough)


def _tells_paired(pairs: Pairs) -> bool:
    return are_clusters(len(pairs.runs_a.lengths), len(pairs.runs_b.lengths)) or pairs.difference.is_enough


def _hedges_g(a: Floats, b: Floats) -> float:
    degrees = len(a) + len(b) - 2
    if min(len(a), len(b)) < 2:  # noqa: PLR2004 (one value has no standard deviation)
        return math.nan
    pooled = math.sqrt(((len(a) - 1) * a.var(ddof=1) + (len(b) - 1) * b.var(ddof=1)) / degrees)
    return float(b.mean() - a.mean()) / pooled * (1 - 3 / (4 * degrees - 1)) if pooled > 0 else math.nan


def _probability_lower(a: Floats, b: Floats) -> float:
    if not (len(a) and len(b)):
        return math.nan
    ranks_a, ranks_b = _ranks(a, b)
    return float(0.5 + ranks_a.mean() - ranks_b.mean())


def _ranks(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The ranks among all values, as shares of their number; their means lie P(a < b) + P(a = b) / 2 - 1 / 2 apart: U."""
    ranks = stats.rankdata(np.concatenate((a, b))) / (len(a) + len(b))
    return ranks[: len(a)], ranks[len(a) :]


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan
