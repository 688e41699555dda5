"""A block bootstrap for confidence intervals of time series.

Successive latencies of a run depend on each other: a slow frame delays the next one. Resampling single values would
treat them as independent and produce intervals that are too narrow. This module resamples blocks of successive values
(Künsch 1989; Davison and Hinkley 1997, section 8.2.3) that are long enough to be nearly independent of each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit
from scipy.stats import rankdata

from shared.runlog.mean_interval import CONFIDENCE

Floats = npt.NDArray[np.float64]

REPLICATES = 1000
_LAYOUTS = 10  # Number of block layouts; each one serves a tenth of the replicates.
_MAX_BLOCKS = 1000  # More blocks cost time without improving the intervals.
_MAX_RANKS = 1024
_QUIET_LAGS = 5  # Politis and White: max(5, √log₁₀ n), which is 5 for every n below 10²⁵.
_MIN_VALUES = 4  # The autocorrelation of fewer values is meaningless.


@dataclass(frozen=True, slots=True)
class SerialDependence:
    """How strongly values in time order depend on each other."""

    block_length: int  # Number of successive values that are resampled together.
    effective_count: float  # Number of independent values that would estimate the mean as precisely.


def measure_dependence(values: Floats) -> SerialDependence:
    """Measures the autocorrelation of the values and of their ranks, and returns the stronger dependence.

    Ranks are included because a single extreme frame hides the autocorrelation of all the others. The block length
    follows Politis and White (2004), corrected by Patton, Politis and White (2009), for circular blocks. It is doubled,
    up to a tenth of the sample: the original length gives 90 % coverage for a strongly correlated series, the doubled
    length 93 %. The effective count is n times the variance over the long-run variance, with the same flat-top window.
    """
    if len(values) < _MIN_VALUES or not np.ptp(values) > 0:
        return SerialDependence(1, float(len(values)))
    measured = [_dependence_of(series) for series in (values, rankdata(values))]
    return SerialDependence(max(each.block_length for each in measured), min(each.effective_count for each in measured))


def _dependence_of(values: Floats) -> SerialDependence:
    count = len(values)
    max_lag = math.ceil(math.sqrt(count)) + _QUIET_LAGS  # From `count` on, the autocovariance is zero.
    covariance = _autocovariance(values, max_lag)
    insignificant = np.abs(covariance[1:]) < 2 * math.sqrt(math.log10(count) / count) * covariance[0]
    # The smallest lag followed by _QUIET_LAGS insignificant ones; lags beyond `max_lag` count as insignificant.
    quiet = np.convolve(np.append(insignificant, np.ones(_QUIET_LAGS)), np.ones(_QUIET_LAGS), "valid") == _QUIET_LAGS
    last = int(np.argmax(quiet))
    if last == 0:
        return SerialDependence(1, float(count))
    lags = np.arange(1, min(2 * last, max_lag) + 1)
    window = np.minimum(1.0, 2 * (1 - lags / (2 * last)))  # Flat up to the middle, then linear down to zero.
    long_run = float(covariance[0] + 2 * window @ covariance[lags])
    if long_run <= 0:  # Negative correlation would raise the effective count above n; n is the maximum here.
        return SerialDependence(1, float(count))
    slope = 2 * float((window * lags) @ covariance[lags])
    length = 2 * (2 * slope**2 / (4 / 3 * long_run**2)) ** (1 / 3) * count ** (1 / 3)
    effective = min(float(count), count * float(covariance[0]) / long_run)
    return SerialDependence(min(max(1, math.ceil(length)), max(1, count // 10)), effective)


def _autocovariance(values: Floats, max_lag: int) -> Floats:
    """Returns the autocovariance at lags 0 to `max_lag`, computed by the fast Fourier transform."""
    size = 1 << (len(values) + max_lag).bit_length()
    spectrum = np.fft.rfft(values - values.mean(), size)
    product = np.fft.irfft(spectrum * spectrum.conj(), size)[: max_lag + 1] / len(values)
    return np.asarray(product, np.float64)


class BlockBootstrap:
    """Resamples one series in blocks.

    Blocks lie end to end from a random start and wrap around the end of the series. A replicate draws as many blocks as
    there are, with replacement. Ten layouts serve a hundred replicates each.
    """

    def __init__(self, length: int, block_length: int, seed: int) -> None:
        """`length`: number of values in the series; `block_length`: number of values resampled together."""
        generator = np.random.default_rng(seed)
        self.blocks = min(max(1, round(length / block_length)), _MAX_BLOCKS, length)
        self._labels, self._draws = [], []
        for _ in range(_LAYOUTS):
            start = int(generator.integers(max(1, length // self.blocks)))
            self._labels.append((np.arange(length) + start) % length * self.blocks // length)
            self._draws.append(_draw_blocks(generator, self.blocks, REPLICATES // _LAYOUTS))

    def means(self, values: Floats) -> Floats:
        """Returns the mean of every replicate, shape (replicates,)."""
        replicates = []
        for labels, draws in zip(self._labels, self._draws, strict=True):
            sums = np.bincount(labels, values, self.blocks)
            sizes = np.bincount(labels, minlength=self.blocks)
            replicates.append(draws.astype(np.float64) @ sums / (draws.astype(np.float64) @ sizes))
        return np.concatenate(replicates)

    def quantiles(self, values: Floats, shares: Sequence[float]) -> Floats:
        """Returns the quantiles of every replicate, shape (replicates, shares).

        No replicate is sorted. The method counts once how many values of each block fall into each bin of ranks; the
        counts of a replicate are then a matrix product, from which the sample rank of each quantile is interpolated.
        Up to 1,024 values, every bin is a single rank; beyond, bins are narrow compared with the quantiles' spread.
        """
        order = np.argsort(values, kind="stable")
        ranked, edges = values[order], _rank_edges(len(values))
        rank_bins = np.searchsorted(edges, np.arange(len(values)), side="right") - 1
        ranks = np.arange(len(values), dtype=np.float64)
        replicates = []
        for labels, draws in zip(self._labels, self._draws, strict=True):
            cells = labels[order] * (len(edges) - 1) + rank_bins
            table = np.bincount(cells, minlength=self.blocks * (len(edges) - 1)).reshape(self.blocks, -1)
            below = np.zeros((len(draws), len(edges)))
            below[:, 1:] = draws @ np.cumsum(table, axis=1).astype(np.float32)
            for row in below:  # Counts stay below 2**24, so single precision is exact.
                wanted = np.asarray(shares) * (row[-1] - 1) + 0.5
                replicates.append(np.interp(np.interp(wanted, row, edges) - 0.5, ranks, ranked))
        return np.asarray(replicates)


def resampled_sums(groups: npt.NDArray[np.number], seed: int) -> Floats:
    """Returns the sum over the groups of every replicate, which draws as many groups as there are, with replacement.

    `groups` has one row per group (a drive, a run, a block of successive values); the result has one row per replicate.
    Equal seeds draw the same groups, so that the difference of two candidates over the same groups is a paired one.
    """
    drawn = _draw_blocks(np.random.default_rng(seed), len(groups), REPLICATES).astype(np.float64)
    return np.tensordot(drawn, groups.astype(np.float64), axes=1)


def _draw_blocks(generator: np.random.Generator, blocks: int, rows: int) -> npt.NDArray[np.float32]:
    """Returns how often each block occurs in each of `rows` replicates, shape (rows, blocks)."""
    drawn = generator.integers(blocks, size=(rows, blocks)) + np.arange(rows)[:, None] * blocks
    return np.bincount(drawn.ravel(), minlength=rows * blocks).reshape(rows, blocks).astype(np.float32)


def _rank_edges(count: int) -> Floats:
    """Returns the edges of the rank bins: even steps on a normal scale, which makes the bins of the tails narrow."""
    if count <= _MAX_RANKS:
        return np.arange(count + 1, dtype=np.float64)
    inner = np.round(count * ndtr(np.linspace(-4.5, 4.5, _MAX_RANKS)))
    return np.unique(np.concatenate(([0.0], inner, [float(count)])))


def percentile_interval(replicates: Floats, degrees: float) -> tuple[float, float]:
    """Returns the expanded percentile interval at 95 % confidence (Hesterberg 2015, section 3.4.1).

    The plain percentile interval is too narrow for few blocks, like a normal interval without Student's t. The expanded
    interval takes its tail probabilities from t with `degrees` of freedom: the number of blocks minus one.
    """
    tail = stdtrit(degrees, (1 - CONFIDENCE) / 2) * math.sqrt((degrees + 1) / degrees)
    low, high = np.quantile(replicates, (ndtr(tail), 1 - ndtr(tail)))
    return float(low), float(high)
