"""Two samples of frames side by side: how far apart they are, and whether their runs show a difference."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from bench.statistics.bootstrap import Floats
from bench.statistics.comparison_text import sentence
from bench.statistics.description import Estimate
from bench.statistics.run_test import RunTest, compare_runs


@dataclass(frozen=True, slots=True)
class Sample:
    """Latencies to compare, in milliseconds; NaN ones are left out."""

    name: str
    latencies: pd.Series
    runs: pd.Series | None = None  # The run of each latency, which is its block in a study; None: all are of one run.


@dataclass(frozen=True, slots=True)
class Comparison:
    """b against a. A figure that does not apply, or that the runs cannot give, is NaN."""

    a: str
    b: str
    count_a: int  # Frames.
    count_b: int
    runs_a: int
    runs_b: int
    difference: Estimate  # Of the runs' medians, ms: mean of b's minus mean of a's.
    ratio: Estimate  # Of the runs' medians: geometric mean of b's over that of a's.
    method: str  # The test that was made; empty where the runs are too few.
    p_value: float  # Adjusted for the number of comparisons made together.
    hedges_g: float  # Above 0: b is higher.
    probability_b_lower: float  # That a frame of b is below one of a, both drawn at random; a tie counts half.
    verdict: str
    sentence: str


def compare(pairs: Sequence[tuple[Sample, Sample]], *, in_blocks: bool) -> list[Comparison]:
    """Compare b with a for each pair, all of them together as one family of tests (see bench.statistics.run_test).

    The figure of a run is the median of its frames. `hedges_g` is the difference of the frames' means in pooled standard
    deviations, with the small-sample factor of Hedges (1981); it and `probability_b_lower` describe the frames, and claim
    nothing about other runs.
    """
    known = [(_known(a), _known(b)) for a, b in pairs]
    medians = [(_medians(a), _medians(b)) for a, b in known]
    tests = compare_runs(medians, in_blocks=in_blocks)
    logarithms = [(_logarithms(a), _logarithms(b)) for a, b in medians]
    ratios = [_ratio(each) for each in compare_runs(logarithms, in_blocks=in_blocks)]
    return [_comparison(a, b, test, ratio) for (a, b), test, ratio in zip(known, tests, ratios, strict=True)]


def _known(sample: Sample) -> Sample:
    is_known = np.isfinite(sample.latencies.to_numpy(np.float64, na_value=np.nan))
    runs = None if sample.runs is None else sample.runs[is_known]
    return Sample(sample.name, sample.latencies[is_known].astype(np.float64), runs)


def _medians(sample: Sample) -> pd.Series:
    """The median of each run, by the run."""
    runs = pd.Series(0, sample.latencies.index) if sample.runs is None else sample.runs
    return sample.latencies.groupby(runs.to_numpy()).median()


def _logarithms(medians: pd.Series) -> pd.Series:
    """The logarithms of durations; NaN for one of 0, which has no ratio."""
    return np.log(medians.where(medians > 0))


def _ratio(test: RunTest) -> Estimate:
    difference = test.difference
    return Estimate(*(math.exp(end) for end in (difference.value, difference.low, difference.high)))


def _comparison(a: Sample, b: Sample, test: RunTest, ratio: Estimate) -> Comparison:
    frames_a, frames_b = (side.latencies.to_numpy(np.float64) for side in (a, b))
    return Comparison(
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
        sentence=sentence(a.name, b.name, test),
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
