import math
import tracemalloc
from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.signal import lfilter

from analysis.statistics.bootstrap import BlockBootstrap, Floats, measure_dependence
from analysis.statistics.description import SHARES, IntervalEstimate, describe, mean_of_runs

_TRIALS = 100


def _latencies(count: int, *, correlation: float = 0.0, seed: int = 0) -> Floats:
    """Skewed values with median 1 whose logarithms are an AR(1) process with the given correlation."""
    noise = np.random.default_rng(seed).standard_normal(count + 100) * math.sqrt(1 - correlation**2)
    return np.asarray(np.exp(0.3 * lfilter([1.0], [1.0, -correlation], noise)[100:]), np.float64)


def _contains(estimate: IntervalEstimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def test_statistics_agree_with_pandas() -> None:
    """A reader can recompute them from the CSV in ten lines, and must get the same digits."""
    values = pd.Series(_latencies(1777))
    found = describe(values)
    names = ("p25", "p50", "p75", "p95", "p99", "p99_9")
    assert [getattr(found, name).value for name in names] == pytest.approx(values.quantile(list(SHARES)), rel=1e-14)
    assert found.mean.value == pytest.approx(values.mean(), rel=1e-14)
    assert found.std == pytest.approx(values.std(), rel=1e-14)
    assert (found.count, found.minimum, found.maximum) == (1777, values.min(), values.max())


def test_intervals_contain_the_true_value_in_95_of_100_samples() -> None:
    """The coverage must hold even if a slow frame delays the next one (correlated latencies)."""
    described = [describe(_latencies(500, correlation=0.6, seed=seed), seed=seed) for seed in range(_TRIALS)]
    upper = math.exp(0.3 * float(stats.norm.ppf(0.75)))
    assert 0.91 <= np.mean([_contains(each.p50, 1.0) for each in described]) <= 0.99
    assert 0.91 <= np.mean([_contains(each.p75, upper) for each in described]) <= 0.99
    assert 0.90 <= np.mean([_contains(each.mean, math.exp(0.045)) for each in described]) <= 0.99


def test_resampling_single_frames_would_make_intervals_too_narrow() -> None:
    """Correlated values need the block bootstrap: resampled singly, their interval is half as wide."""
    values = _latencies(2000, correlation=0.8)
    single_values = BlockBootstrap(2000, 1, seed=0).quantiles(values, (0.5,))
    p50 = describe(values).p50
    assert p50.high - p50.low > 2 * float(np.subtract(*np.quantile(single_values, (0.975, 0.025))))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_the_effective_count_is_that_of_the_process(correlation: float) -> None:
    """n frames of an AR(1) process are worth n (1 - φ) / (1 + φ) independent ones."""
    counts = [
        measure_dependence(np.log(_latencies(4000, correlation=correlation, seed=seed))).effective_count
        for seed in range(20)
    ]
    assert np.median(counts) == pytest.approx(4000 * (1 - correlation) / (1 + correlation), rel=0.15)


def test_one_extreme_frame_does_not_hide_the_correlation_of_the_others() -> None:
    """The extreme frame hides the autocorrelation of the values, but not that of their ranks."""
    values = _latencies(2000, correlation=0.8)
    values[1000] = 1e6
    assert measure_dependence(values).effective_count < 2000 / 4


def test_ties_do_not_count_as_correlation() -> None:
    """A clock with a resolution of one millisecond produces many equal values."""
    values = np.random.default_rng(1).integers(0, 3, 3000).astype(np.float64)
    assert measure_dependence(values).effective_count > 2500


def test_a_percentile_with_too_few_values_beyond_it_has_no_interval() -> None:
    """Only five of 500 frames lie beyond p99: its value is reported without an interval."""
    found = describe(_latencies(500))
    assert math.isfinite(found.p95.low)
    assert math.isfinite(found.p99.value)
    assert math.isnan(found.p99.low)
    assert math.isnan(found.p99.high)
    assert math.isfinite(describe(_latencies(12_000)).p99_9.high)


@pytest.mark.parametrize("values", [[], [math.nan, math.nan], [5.0], [1.0, 2.0], [3.0] * 9])
def test_samples_of_few_or_no_values_are_described_without_intervals(values: list[float]) -> None:
    """The report must also be written for a run without answered frames."""
    found = describe(values)
    measured = [value for value in values if math.isfinite(value)]
    assert found.count == len(measured)
    assert math.isnan(found.p50.low)
    assert math.isnan(found.p50.value) == (not measured)
    assert math.isnan(found.std) == (len(measured) < 2)


def test_nan_values_are_skipped() -> None:
    """An unanswered frame has no total; it must not count as zero."""
    values = _latencies(300)
    with_gaps = np.insert(values, [0, 100, 300], math.nan)
    assert astuple(describe(with_gaps)) == astuple(describe(values))


def test_constant_values_have_an_interval_of_zero_width() -> None:
    """The interval of a sample without variation is its value."""
    assert describe([3.0] * 50).p50 == IntervalEstimate(3.0, 3.0, 3.0)


def test_the_same_seed_gives_the_same_intervals() -> None:
    """Two reports of the same run must not differ."""
    values = _latencies(400)
    assert describe(values, seed=7) == describe(values, seed=7)
    assert describe(values, seed=7).p50 != describe(values, seed=8).p50


@pytest.mark.parametrize("count", [900, 30_000])
def test_bootstrap_quantiles_follow_the_distribution_of_order_statistics(count: int) -> None:
    """Quantiles are computed without sorting; for independent values they must still follow the beta distribution."""
    values = np.random.default_rng(3).permutation(count).astype(np.float64)
    quantiles = BlockBootstrap(count, 1, seed=0).quantiles(values, (0.5, 0.99))
    for column, share in zip(quantiles.T, (0.5, 0.99), strict=True):
        rank = share * (count - 1) + 1  # Ranks of order statistics start at 1.
        expected = stats.beta(rank, count - rank + 1, loc=-0.5, scale=count)
        assert column.mean() == pytest.approx(expected.mean(), abs=4 * expected.std() / math.sqrt(len(column)))
        assert column.std() == pytest.approx(expected.std(), rel=0.12)


def test_describing_a_hundred_thousand_values_needs_less_than_100_mb() -> None:
    """The report describes every stage of a long run; one gigabyte must be enough for the whole report."""
    values = _latencies(100_000, correlation=0.5)
    tracemalloc.start()
    try:
        describe(values)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100e6


def test_the_mean_of_runs_has_students_interval() -> None:
    """Five runs are few: the interval is wider than the normal one."""
    estimate = mean_of_runs([4.0, 5.0, 6.0, 5.0, 5.0])
    assert estimate.value == 5.0
    assert estimate.high - estimate.value == pytest.approx(2.776 * math.sqrt(0.5 / 5), rel=1e-3)
    assert estimate.value - estimate.low == pytest.approx(estimate.high - estimate.value)
    assert math.isnan(mean_of_runs([1.0]).low)
