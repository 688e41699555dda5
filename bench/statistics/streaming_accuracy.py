"""Confidence intervals of streaming accuracy, see `modelling.evaluation.streaming`."""

import math
from typing import Final

import numpy as np

from bench.statistics.bootstrap import Floats, measure_dependence, percentile_interval, resampled_sums
from bench.statistics.description import IntervalEstimate
from modelling.evaluation.streaming import StreamingScores, Tallies, mean_iou

MIN_GROUPS: Final = 3  # Drives, or blocks of one drive, that an interval needs.


def accuracy_interval(scores: StreamingScores, *, with_missing: bool = False, seed: int = 0) -> IntervalEstimate:
    """Returns the mean IoU with its 95 % interval: a bootstrap over drives, or over blocks of ticks of a single drive.

    The blocks are long enough to be nearly independent of each other. The ends are NaN for fewer than three drives or
    blocks.
    """
    groups = _groups(scores, with_missing=with_missing)
    value = scores.mean_iou(with_missing=with_missing)
    return _interval(value, _replicates(groups, scores, seed), len(groups))


def margin_interval(
    scores: StreamingScores, baseline: StreamingScores, *, with_missing: bool = False, seed: int = 0
) -> IntervalEstimate:
    """Returns the mean IoU minus that of a baseline over the same drives, with the 95 % interval of the paired difference.

    The ends are NaN for fewer than three drives.

    Raises:
        ValueError: the drives differ.
    """
    drives = list(scores.by_drive())
    if drives != list(baseline.by_drive()):
        raise ValueError(f"a margin needs the same drives: {drives}, {list(baseline.by_drive())}")
    both = [_groups(each, with_missing=with_missing) for each in (scores, baseline)]
    own, others = (_replicates(groups, scores, seed) for groups in both)
    value = scores.mean_iou(with_missing=with_missing) - baseline.mean_iou(with_missing=with_missing)
    return _interval(value, own - others, len(drives))


def _groups(scores: StreamingScores, *, with_missing: bool) -> Tallies:
    """Returns the summed tallies of each drive, or of each block of a single drive's ticks; groups×3×classes."""
    drives = [each.stacked(with_missing=with_missing) for each in scores.by_drive().values()]
    if len(drives) > 1:
        return np.stack([each.sum(axis=0) for each in drives])
    ticks = drives[0] if drives else scores.stacked()
    by_tick = mean_iou(ticks, scores.counted)
    length = measure_dependence(by_tick[np.isfinite(by_tick)]).block_length
    blocks = max(1, len(ticks) // length)
    return np.stack([each.sum(axis=0) for each in np.array_split(ticks, blocks)])


def _replicates(groups: Tallies, scores: StreamingScores, seed: int) -> Floats:
    return mean_iou(resampled_sums(groups, seed), scores.counted)


def _interval(value: float, replicates: Floats, groups: int) -> IntervalEstimate:
    if groups < MIN_GROUPS or math.isnan(value):
        return IntervalEstimate(value)
    return IntervalEstimate(value, *percentile_interval(replicates[np.isfinite(replicates)], groups - 1))
