"""The block bootstrap: how far a figure of a run would stray if the run were repeated.

The latencies of a run follow one another: a slow frame holds up the next. Drawing single values anew would treat them
as independent and make every interval too narrow, so blocks of neighbours are drawn (Künsch 1989; Davison and Hinkley
1997, section 8.2.3), long enough that the blocks hardly depend on one another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit
from scipy.stats import rankdata

Floats = npt.NDArray[np.float64]

REPLICATES = 1000
CONFIDENCE = 0.95
_LAYOUTS = 10  # How many ways the blocks are laid out; each serves a tenth of the replicates.
_MAX_BLOCKS = 1000  # More blocks than these cost time and tell no more of the spread.
_MAX_RANKS = 1024


@dataclass(frozen=True, slots=True)
class SerialDependence:
    """How values in time order hang together."""

    block_length: int  # Values that must stay together when the sample is drawn anew.
    effective_count: float  # So many independent values would tell as much of the mean; at most their number.


def measure_dependence(values: Floats) -> SerialDependence:
    """Measure autocorrelation, of the values and of their ranks, and keep what is worse of the two.

    Ranks, since one frame a hundred times slower than all others hides in the plain autocorrelation whatever the others
    do. Block length after Politis and White (2004) as corrected by Patton, Politis and White (2009), for circular
    blocks, doubled, but a tenth of the sample at most: their length makes the variance exact on the average, and cuts
    the intervals of a strongly correlated series to 90 % coverage where the doubled one gives 93 %. The effective count
    is n times the variance over the long-run variance, of the same flat-top window.
    """
    if len(values) < 4 or not np.ptp(values) > 0:  # noqa: PLR2004 (three values have no autocorrelation to speak of)
        return SerialDependence(1, float(len(values)))
    known = [_dependence(series) for series in (values, rankdata(values))]
    return SerialDependence(max(each.block_length for each in known), min(each.effective_count for each in known))


def _dependence(values: Floats) -> SerialDependence:
    count = len(values)
    runs_of = max(5, math.ceil(math.sqrt(math.log10(count))))
    furthest = min(count - 1, math.ceil(math.sqrt(count)) + runs_of)
    covariance = _autocovariance(values, furthest)
    small = np.abs(covariance[1:]) < 2 * math.sqrt(math.log10(count) / count) * covariance[0]
    # The least lag after which the next `runs_of` are all insignificant; those beyond the furthest are taken for that.
    quiet = np.convolve(np.append(small, np.ones(runs_of)), np.ones(runs_of), "valid") == runs_of
    last = int(np.argmax(quiet))
    if last == 0:
        return SerialDependence(1, float(count))
    lags = np.arange(1, min(2 * last, furthest) + 1)
    window = np.minimum(1.0, 2 * (1 - lags / (2 * last)))  # Flat to the middle, then straight down to zero.
    long_run = float(covariance[0] + 2 * window @ covariance[lags])
    if long_run <= 0:  # Values that swing to and fro tell more than independent ones; they are not credited with it.
        return SerialDependence(1, float(count))
    slope = 2 * float((window * lags) @ covariance[lags])
    length = 2 * (2 * slope**2 / (4 / 3 * long_run**2)) ** (1 / 3) * count ** (1 / 3)
    effective = min(float(count), count * float(covariance[0]) / long_run)
    return SerialDependence(min(max(1, math.ceil(length)), max(1, count // 10)), effective)


def _autocovariance(values: Floats, furthest: int) -> Floats:
    """Of lags 0 to `furthest`, by the fast Fourier transform."""
    size = 1 << (len(values) + furthest).bit_length()
    spectrum = np.fft.rfft(values - values.mean(), size)
    product = np.fft.irfft(spectrum * spectrum.conj(), size)[: furthest + 1] / len(values)
    return np.asarray(product, np.float64)


class BlockBootstrap:
    """Samples drawn anew from one series, in blocks.

    Blocks lie end to end from a random start, round the end of a run to its beginning. A replicate is as many blocks as
    there are, drawn with replacement; ten layouts serve a hundred replicates each.
    """

    def __init__(self, length: int, block_length: int, seed: int) -> None:
        """`length`: the number of values in the series; `block_length`: the number that stay together."""
        generator = np.random.default_rng(seed)
        self.blocks = min(max(1, round(length / block_length)), _MAX_BLOCKS, length)
        self._labels, self._draws = [], []
        for _ in range(_LAYOUTS):
            start = int(generator.integers(max(1, length // self.blocks)))
            self._labels.append((np.arange(length) + start) % length * self.blocks // length)
            self._draws.append(_draws(generator, self.blocks))

    def means(self, values: Floats) -> Floats:
        """The mean of every replicate of `values`."""
        replicates = []
        for labels, draws in zip(self._labels, self._draws, strict=True):
            sums = np.bincount(labels, values, self.blocks)
            sizes = np.bincount(labels, minlength=self.blocks)
            replicates.append(draws.astype(np.float64) @ sums / (draws.astype(np.float64) @ sizes))
        return np.concatenate(replicates)

    def quantiles(self, values: Floats, shares: Sequence[float]) -> Floats:
        """The quantiles of every replicate of `values`: replicates × shares.

        A replicate is never sorted: how often each block holds each stretch of ranks is counted once, a replicate's
        counts are a product of matrices, and the rank that its quantile has in the sample is read off them. Up to
        1,024 values the stretches are single ranks; beyond, they are narrow against the spread of any quantile.
        """
        order = np.argsort(values, kind="stable")
        ranked, edges = values[order], _rank_edges(len(values))
        stretch = np.searchsorted(edges, np.arange(len(values)), side="right") - 1
        places = np.arange(len(values), dtype=np.float64)
        replicates = []
        for labels, draws in zip(self._labels, self._draws, strict=True):
            cells = labels[order] * (len(edges) - 1) + stretch
            table = np.bincount(cells, minlength=self.blocks * (len(edges) - 1)).reshape(self.blocks, -1)
            below = np.zeros((len(draws), len(edges)))
            below[:, 1:] = draws @ np.cumsum(table, axis=1).astype(np.float32)
            for row in below:  # Whole counts below 2**24: exact in single precision.
                wanted = np.asarray(shares) * (row[-1] - 1) + 0.5
                replicates.append(np.interp(np.interp(wanted, row, edges) - 0.5, places, ranked))
        return np.asarray(replicates)


def _draws(generator: np.random.Generator, blocks: int) -> npt.NDArray[np.float32]:
    """How often each block is in each replicate of one layout: replicates × blocks."""
    rows = REPLICATES // _LAYOUTS
    drawn = generator.integers(blocks, size=(rows, blocks)) + np.arange(rows)[:, None] * blocks
    return np.bincount(drawn.ravel(), minlength=rows * blocks).reshape(rows, blocks).astype(np.float32)


def _rank_edges(count: int) -> Floats:
    """Where the stretches of ranks begin and end: evenly on a normal scale, so that the tails are fine."""
    if count <= _MAX_RANKS:
        return np.arange(count + 1, dtype=np.float64)
    inner = np.round(count * ndtr(np.linspace(-4.5, 4.5, _MAX_RANKS)))
    return np.unique(np.concatenate(([0.0], inner, [float(count)])))


def percentile_interval(replicates: Floats, degrees: float) -> tuple[float, float]:
    """The expanded percentile interval of 95 % (Hesterberg 2015, section 3.4.1).

    A plain percentile interval is too narrow for few blocks, as a normal interval is without Student's t: the shares cut
    off are those that t with `degrees` of freedom asks for, `degrees` being the number of blocks less one.
    """
    tail = stdtrit(degrees, (1 - CONFIDENCE) / 2) * math.sqrt((degrees + 1) / degrees)
    low, high = np.quantile(replicates, (ndtr(tail), 1 - ndtr(tail)))
    return float(low), float(high)
