"""Confidence intervals of streaming accuracy, see `modelling.evaluation.streaming`."""

import math
from collections.abc import Sequence

import numpy as np

from analysis.statistics.bootstrap import Floats, measure_dependence, percentile_interval, resampled_sums
from analysis.statistics.description import IntervalEstimate
from modelling.evaluation.metrics import Tallies
from modelling.evaluation.streaming import StreamingBoxes, StreamingScores
from shared.runlog.mean_interval import MIN_RUNS


def accuracy_interval(scores: StreamingScores, *, with_missing: bool = False, seed: int = 0) -> IntervalEstimate:
    """Returns the mean IoU with its 95 % interval: a bootstrap over drives, or over blocks of ticks of a single drive.

    The blocks are long enough to be nearly independent of each other. The ends are NaN for fewer than three drives or
    blocks. `with_missing`: ticks without an output count as wrong; otherwise they are left out.
    """
    groups = _groups(scores, with_missing=with_missing)
    value = scores.accuracy(with_missing=with_missing)
    return _interval(value, _replicates(groups, scores, seed), len(groups))


def precision_interval(scores: StreamingBoxes, *, with_missing: bool = False, seed: int = 0) -> IntervalEstimate:
    """Returns the average precision with its 95 % interval, as `accuracy_interval` returns the mean IoU."""
    value = scores.accuracy(with_missing=with_missing)
    ticks = [tick for tick in scores.ticks if with_missing or not tick.is_missing]
    groups = np.unique([tick.drive for tick in ticks], return_inverse=True)[1]
    if ticks and not groups.any():
        recalls = np.array([tick.tallies.recall for tick in ticks])
        length = measure_dependence(recalls[np.isfinite(recalls)]).block_length
        groups = np.minimum(np.arange(len(ticks)) // length, max(1, len(ticks) // length) - 1)
    count = int(groups.max()) + 1 if ticks else 0
    if count < MIN_RUNS:
        return IntervalEstimate(value)
    weights = resampled_sums(np.eye(count), seed)[:, groups]
    return _interval(value, scores.replicates(weights, with_missing=with_missing), count)


def margin_interval(
    scores: StreamingScores, baseline: StreamingScores, *, with_missing: bool = False, seed: int = 0
) -> IntervalEstimate:
    """Returns the mean IoU minus that of a baseline over the same ticks, with the 95 % interval of the paired difference.

    Drives are resampled, or blocks of a single drive's ticks. The ends are NaN for fewer than three of them.

    Raises:
        ValueError: the drives differ, or the numbers of ticks of a single drive.
    """
    (own, others), groups = _paired((scores, baseline), with_missing=with_missing, seed=seed)
    return _interval(own[0] - others[0], own[1:] - others[1:], groups)


def recovered_interval(
    scores: StreamingScores, floor: StreamingScores, ceiling: StreamingScores, *, seed: int = 0
) -> IntervalEstimate:
    """Returns the share of the distance from a floor to a ceiling that the scores reach, with its 95 % interval.

    Ticks without an output count as wrong. Drives are resampled, or blocks of a single drive's ticks. The ends are NaN for
    fewer than three of them.

    Raises:
        ValueError: the drives differ, or the numbers of ticks of a single drive.
    """
    (own, low, high), groups = _paired((scores, floor, ceiling), with_missing=True, seed=seed)
    distance = high - low
    shares = np.divide(own - low, distance, out=np.full_like(own, np.nan), where=distance > 0)
    return _interval(float(shares[0]), shares[1:], groups)


def _paired(candidates: Sequence[StreamingScores], *, with_missing: bool, seed: int) -> tuple[list[Floats], int]:
    """Returns, for each candidate, its mean IoU and then that of every replicate; and the number of groups.

    All candidates draw the same drives, or the same blocks of a single drive: those of the strongest dependence.
    """
    drives = [list(each.by_drive()) for each in candidates]
    if any(each != drives[0] for each in drives):
        raise ValueError(f"a comparison needs the same drives: {drives}")
    if len(drives[0]) == 1:
        ticks = [len(each.stacked(with_missing=with_missing)) for each in candidates]
        if len(set(ticks)) > 1:
            raise ValueError(f"a comparison over one drive needs the same ticks, not {ticks}")
    length = max(_block_length(each.stacked(with_missing=with_missing), each) for each in candidates)
    groups = [_groups(each, with_missing=with_missing, block_length=length) for each in candidates]
    values = [
        np.append(each.accuracy(with_missing=with_missing), _replicates(summed, each, seed))
        for each, summed in zip(candidates, groups, strict=True)
    ]
    return values, len(groups[0])


def _groups(scores: StreamingScores, *, with_missing: bool, block_length: int | None = None) -> Tallies:
    """Returns the summed tallies of each drive, or of each block of a single drive's ticks; groups×3×classes."""
    drives = [each.stacked(with_missing=with_missing) for each in scores.by_drive().values()]
    if len(drives) > 1:
        return np.stack([each.sum(axis=0) for each in drives])
    ticks = drives[0] if drives else scores.stacked()
    blocks = max(1, len(ticks) // (block_length or _block_length(ticks, scores)))
    return np.stack([each.sum(axis=0) for each in np.array_split(ticks, blocks)])


def _block_length(ticks: Tallies, scores: StreamingScores) -> int:
    """Returns the number of successive ticks that are resampled together, so that blocks are nearly independent."""
    by_tick = scores.accuracies(ticks)
    return measure_dependence(by_tick[np.isfinite(by_tick)]).block_length


def _replicates(groups: Tallies, scores: StreamingScores, seed: int) -> Floats:
    return scores.accuracies(resampled_sums(groups, seed))


def _interval(value: float, replicates: Floats, groups: int) -> IntervalEstimate:
    if groups < MIN_RUNS or math.isnan(value):
        return IntervalEstimate(float(value))
    return IntervalEstimate(float(value), *percentile_interval(replicates[np.isfinite(replicates)], groups - 1))
