import math
import tracemalloc
from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.signal import lfilter

from bench.statistics.bootstrap import BlockBootstrap, Floats, measure_dependence
from bench.statistics.description import SHARES, IntervalEstimate, describe

_TRIALS = 100


def _latencies(count: int, *, hang: float = 0.0, seed: int = 0) -> Floats:
    """Skewed values whose logarithms are an AR(1) process of so much correlation; their median is 1."""
    noise = np.random.default_rng(seed).standard_normal(count + 100) * math.sqrt(1 - hang**2)
    return np.asarray(np.exp(0.3 * lfilter([1.0], [1.0, -hang], noise)[100:]), np.float64)


def _holds(estimate: IntervalEstimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def test_the_figures_are_what_pandas_says() -> None:
    """A reader recomputes them from the CSV in ten lines: they must agree to the last digits."""
    values = pd.Series(_latencies(1777))
    found = describe(values)
    names = ("p25", "p50", "p75", "p95", "p99", "p99_9")
    assert [getattr(found, name).value for name in names] == pytest.approx(values.quantile(list(SHARES)), rel=1e-14)
    assert found.mean.value == pytest.approx(values.mean(), rel=1e-14)
    assert found.std == pytest.approx(values.std(), rel=1e-14)
    assert (found.count, found.minimum, found.maximum) == (1777, values.min(), values.max())


@pytest.mark.parametrize(("count", "hang"), [(200, 0.0), (500, 0.6)])
def test_intervals_hold_the_truth_as_often_as_they_say(count: int, hang: float) -> None:
    """The whole worth of an interval: 95 of 100, also where a slow frame holds up the next."""
    described = [describe(_latencies(count, hang=hang, seed=seed), seed=seed) for seed in range(_TRIALS)]
    upper = math.exp(0.3 * float(stats.norm.ppf(0.75)))
    assert 0.91 <= np.mean([_holds(each.p50, 1.0) for each in described]) <= 0.99
    assert 0.91 <= np.mean([_holds(each.p75, upper) for each in described]) <= 0.99
    assert 0.90 <= np.mean([_holds(each.mean, math.exp(0.045)) for each in described]) <= 0.99


def test_intervals_of_independent_frames_would_be_too_narrow() -> None:
    """Why blocks are drawn at all: taken singly, the same values claim twice what they can show."""
    values = _latencies(2000, hang=0.8)
    singly = BlockBootstrap(2000, 1, seed=0).quantiles(values, (0.5,))
    p50 = describe(values).p50
    assert p50.high - p50.low > 2 * float(np.subtract(*np.quantile(singly, (0.975, 0.025))))


@pytest.mark.parametrize("hang", [0.0, 0.5, 0.8])
def test_effective_values_are_those_of_the_process(hang: float) -> None:
    """Of an AR(1) process n frames are worth n (1 - φ) / (1 + φ)."""
    counts = [measure_dependence(np.log(_latencies(4000, hang=hang, seed=seed))).effective_count for seed in range(20)]
    assert np.median(counts) == pytest.approx(4000 * (1 - hang) / (1 + hang), rel=0.15)


def test_one_enormous_frame_does_not_hide_how_the_others_hang_together() -> None:
    """It dwarfs the plain autocorrelation; the ranks know better."""
    values = _latencies(2000, hang=0.8)
    values[1000] = 1e6
    assert measure_dependence(values).effective_count < 2000 / 4


def test_ties_are_no_dependence() -> None:
    """A clock of whole milliseconds makes equal values; equal values in a row are no trend."""
    values = np.random.default_rng(1).integers(0, 3, 3000).astype(np.float64)
    assert measure_dependence(values).effective_count > 2500


def test_a_percentile_that_too_few_values_lie_beyond_gets_no_bounds() -> None:
    """p99 of 500 frames is made of five: its value is told, how sure it is is not."""
    found = describe(_latencies(500))
    assert math.isfinite(found.p95.low)
    assert math.isfinite(found.p99.value)
    assert math.isnan(found.p99.low)
    assert math.isnan(found.p99.high)
    assert math.isfinite(describe(_latencies(12_000)).p99_9.high)


@pytest.mark.parametrize("values", [[], [math.nan, math.nan], [5.0], [1.0, 2.0], [3.0] * 9])
def test_hardly_any_values_are_no_error_and_no_invention(values: list[float]) -> None:
    """A run may have answered nothing; the report goes on, and says so."""
    found = describe(values)
    known = [value for value in values if math.isfinite(value)]
    assert found.count == len(known)
    assert math.isnan(found.p50.low)
    assert math.isnan(found.p50.value) == (not known)
    assert math.isnan(found.std) == (len(known) < 2)


def test_what_was_not_measured_is_left_out() -> None:
    """An unanswered frame has no total; it is not zero."""
    values = _latencies(300)
    holes = np.insert(values, [0, 100, 300], math.nan)
    assert astuple(describe(holes)) == astuple(describe(values))


def test_values_that_never_vary_have_an_interval_of_no_width() -> None:
    """Nothing is uncertain about them."""
    assert describe([3.0] * 50).p50 == IntervalEstimate(3.0, 3.0, 3.0)


def test_the_same_seed_gives_the_same_bounds() -> None:
    """A report made twice must not differ."""
    values = _latencies(400)
    assert describe(values, seed=7) == describe(values, seed=7)
    assert describe(values, seed=7).p50 != describe(values, seed=8).p50


@pytest.mark.parametrize("count", [900, 30_000])
def test_replicates_spread_as_order_statistics_do(count: int) -> None:
    """No replicate is sorted: of independent values the ranks drawn must still follow the Beta law."""
    values = np.random.default_rng(3).permutation(count).astype(np.float64)
    drawn = BlockBootstrap(count, 1, seed=0).quantiles(values, (0.5, 0.99))
    for column, share in zip(drawn.T, (0.5, 0.99), strict=True):
        place = share * (count - 1) + 1  # From 1, as order statistics are counted.
        law = stats.beta(place, count - place + 1, loc=-0.5, scale=count)
        assert column.mean() == pytest.approx(law.mean(), abs=4 * law.std() / math.sqrt(len(column)))
        assert column.std() == pytest.approx(law.std(), rel=0.12)


def test_a_hundred_thousand_values_need_little_memory() -> None:
    """A long run is described for every stage; the report has a gigabyte for everything."""
    values = _latencies(100_000, hang=0.5)
    tracemalloc.start()
    try:
        describe(values)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100e6
