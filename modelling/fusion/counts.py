"""The fusion of two models, counted and judged on labelled drives.

Boxes: the share of them that is right, by label and score, and by age if they were moved. Masks: the true classes of each cell of the table, and the
choice of the cell's class.

The rule for masks maximises the mean IoU, which is not the share of right pixels. To predict class c for a pixel that is of
c with the probability p adds p to the intersection I of c and 1 - p to its union U. To first order, the IoU I/U so changes
by (p·(1 + IoU) - IoU) / U, and the class with the largest gain is chosen; IoU and U follow from the choice, so the choice
is repeated a few times.

Pixels of one drive are alike, so a cell differs from the better of the two models only if its gain, summed over the drives,
exceeds a multiple of its standard error. The multiple is chosen by cross-validation over the drives.

Without true labels, the reference model's own results say which model is right. The local model shares errors with them, which
makes it seem better than it is. So a cell then differs from the moved result only if its gain exceeds the largest multiple.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.presenting.flow import picture
from edge.presenting.fuse import MaskPair, disagreement, fused_detections, fused_mask, score_range
from edge.presenting.fusion_table import SCORES, FusionTable, JudgedAge, table_shape
from edge.presenting.warp import moved_detections, moved_mask
from modelling.evaluation.bag_images import ComparedWith, in_input
from modelling.evaluation.metrics import HEADLINE_SIZE, counted_classes, ious, matched_boxes, mean_iou
from modelling.evaluation.streaming import ScoredTicks, StreamingBoxes, StreamingScores
from modelling.fusion.recording import AgedResult

Shares = npt.NDArray[np.float32]

_PRIOR_BOXES = 2.0  # Weight of a score's own value, for ranges with few boxes.


class BoxCounts:
    """Boxes by label and score, and those of them that match a true box."""

    def __init__(self, ages: int, names: Sequence[str]) -> None:
        self.ticks = np.zeros(ages, np.int64)
        self._labels = len(names)
        self._remote = np.zeros((ages, 2, self._labels, SCORES))  # Right boxes, all boxes.
        self._local = np.zeros((2, self._labels, SCORES))

    def add(self, drive: int, aged: AgedResult) -> None:
        """Adds the boxes of a tick."""
        del drive  # All boxes count alike.
        plan, truth = aged.now.tick.geometry, aged.now.truth
        moved = moved_detections(aged.source.remote, aged.motion, plan)
        for boxes, counts in ((moved, self._remote[aged.age]), (aged.now.local.result, self._local)):
            matched = matched_boxes(in_input(boxes, plan), truth, self._labels, HEADLINE_SIZE)
            for label, (scores, hits) in enumerate(zip(matched.scores, matched.hits, strict=True)):
                ranges = score_range(scores)
                counts[0, label] += np.bincount(ranges[hits], minlength=SCORES)
                counts[1, label] += np.bincount(ranges, minlength=SCORES)
        self.ticks[aged.age] += 1

    def arrays(self, ages: Sequence[int]) -> dict[str, Shares]:
        """Returns the arrays of a table with the given ages."""
        return {"remote": np.stack([_shares(self._remote[age]) for age in ages]), "local": _shares(self._local)}


def _shares(counts: npt.NDArray[np.float64]) -> Shares:
    """Returns the share of right boxes by label and range of scores, which does not fall when the score rises."""
    own = (np.arange(SCORES) + 0.5) / SCORES
    shares = (counts[0] + _PRIOR_BOXES * own) / (counts[1] + _PRIOR_BOXES)
    return np.maximum.accumulate(shares, axis=1).astype(np.float32)


Counts = npt.NDArray[np.float64]  # …×cells×remote×local×true class: pixels.
Classes = npt.NDArray[np.intp]  # cells×remote×local

_CAUTIONS = (0.0, 0.5, 1.0, 1.5)  # Standard errors that a gain must exceed.
_FOLDS = 5
_ROUNDS = 6
_DAMPING = 0.5  # Share of the weights of the round before.


class MaskCounts:
    """Pixels by drive, age, cell of the table and true class."""

    def __init__(self, ages: int, names: Sequence[str], compared_with: ComparedWith = "labels") -> None:
        self.ticks = np.zeros(ages, np.int64)
        self._names = names
        self._compared_with = compared_with
        self._shape = table_shape(ages, len(names))
        self._drives: list[npt.NDArray[np.int32]] = []

    def add(self, drive: int, aged: AgedResult) -> None:
        """Adds the pixels of a tick. Drives are numbered from 0, and come in order."""
        labels, plan = len(self._names), aged.now.tick.geometry
        if drive == len(self._drives):
            self._drives.append(np.zeros((self._shape[0], int(np.prod(self._shape[1:])) * labels), np.int32))
        moved = moved_mask(aged.source.remote, aged.motion, plan)
        differing = disagreement(labels, MaskPair(moved, aged.now.local, aged.motion, plan))
        agreed = picture(moved, plan).astype(np.intp).ravel()
        places = agreed * labels + agreed  # The other features do not count where both agree.
        places[differing.pixels] = differing.places
        truth = picture(aged.now.truth, plan).ravel()
        known = truth < labels
        counts = self._drives[drive][aged.age]
        counts += np.bincount((places * labels + truth)[known], minlength=len(counts)).astype(np.int32)
        self.ticks[aged.age] += 1

    def arrays(self, ages: Sequence[int]) -> dict[str, npt.NDArray[np.uint8]]:
        """Returns the arrays of a table with the given ages, which have pixels."""
        labels = len(self._names)
        is_counted = counted_classes(self._names)
        chosen = [
            choose(
                np.stack([drive[age].reshape(-1, labels, labels, labels) for drive in self._drives]),
                is_counted,
                self._compared_with,
            )
            for age in ages
        ]
        return {"classes": np.stack(chosen).reshape(len(ages), *self._shape[1:])}


def choose(
    pixels: npt.NDArray[np.int32], is_counted: npt.NDArray[np.bool_], compared_with: ComparedWith = "labels"
) -> npt.NDArray[np.uint8]:
    """Returns the class of each cell with which the mean IoU of the counted classes is highest on drives like the given.

    `pixels`: drives×cells×remote×local×true class.
    """
    counts = pixels.astype(np.float64)
    local, remote = _given(counts.shape[1:-1])
    if compared_with == "results":
        return _chosen(counts, is_counted, max(_CAUTIONS), remote).astype(np.uint8)

    def best(part: Counts, caution: float) -> Classes:
        better = max((local, remote), key=lambda each: mean_iou(_tallies(part.sum(axis=0), each), is_counted))
        return _chosen(part, is_counted, caution, better)

    def accuracy_elsewhere(caution: float) -> float:
        """Returns the accuracy with tables that are made without the drives that they are judged on."""
        folds = min(_FOLDS, len(counts))
        if folds == 1:
            return caution  # One drive says nothing of others: the most cautious choice wins.
        fold_of = np.arange(len(counts)) % folds
        elsewhere = [
            _tallies(counts[fold_of == fold].sum(axis=0), best(counts[fold_of != fold], caution))
            for fold in range(folds)
        ]
        return float(mean_iou(np.sum(elsewhere, axis=0), is_counted))

    return best(counts, max(_CAUTIONS, key=accuracy_elsewhere)).astype(np.uint8)


def _given(shape: tuple[int, ...]) -> tuple[Classes, Classes]:
    """Returns the class that the local model gives in each cell, and the remote one's."""
    labels = np.arange(shape[-1])
    return np.broadcast_to(labels, shape), np.broadcast_to(labels[:, np.newaxis], shape)


def _chosen(counts: Counts, is_counted: npt.NDArray[np.bool_], caution: float, usual: Classes) -> Classes:
    """Returns the class of each cell: the usual one, or one that gains more than its uncertainty."""
    total = counts.sum(axis=0)
    local, remote = _given(total.shape[:-1])
    differ = remote != local
    classes, weights = usual, None
    for _ in range(_ROUNDS):
        tallies = _tallies(total, classes)
        iou, union = ious(tallies), np.maximum(tallies[1] + tallies[2] - tallies[0], 1.0)
        now = np.stack([(1 + iou) / union, iou / union]) * is_counted
        weights = now if weights is None else _DAMPING * weights + (1 - _DAMPING) * now
        gain, square = np.zeros_like(total), np.zeros_like(total)
        for drive in counts:
            value = drive * weights[0] - drive.sum(axis=-1, keepdims=True) * weights[1]
            value -= np.take_along_axis(value, usual[..., np.newaxis], -1)
            gain += value
            square += value**2
        certain = gain - caution * np.sqrt(square)
        classes = np.where(differ & (certain.max(axis=-1) > 0), certain.argmax(axis=-1), usual)
    return classes


def _tallies(counts: Counts, classes: Classes) -> Counts:
    """Returns the tallies of `modelling.evaluation.metrics` if each cell is given a class."""
    labels = counts.shape[-1]
    confusion = np.zeros((labels, labels))  # Rows are predicted classes, columns true ones.
    np.add.at(confusion, classes.ravel(), counts.reshape(-1, labels))
    return np.stack((np.diag(confusion), confusion.sum(axis=0), confusion.sum(axis=1)))


class FusionJudge:
    """Compares what presenters show on drives that the table was not made from."""

    def __init__(self, table: FusionTable, names: Sequence[str]) -> None:
        self._table = table
        self._is_masks = table.header.task == "segmentation"
        kind = StreamingScores if self._is_masks else StreamingBoxes
        self._scores: dict[int, dict[str, ScoredTicks[Any]]] = defaultdict(lambda: defaultdict(lambda: kind(names)))

    def add(self, aged: AgedResult) -> None:
        """Adds a tick."""
        plan, local = aged.now.tick.geometry, aged.now.local
        moved_result = moved_mask if self._is_masks else moved_detections
        moved: Any = moved_result(aged.source.remote, aged.motion, plan)
        fused = (
            fused_mask(self._table, aged.age, MaskPair(moved, local, aged.motion, plan))
            if self._is_masks
            else fused_detections(self._table, aged.age, moved, local.result)
        )
        shown = {
            "local": local.result,
            "hold": aged.source.remote,
            "warp": moved,
            "fuse": fused,
            "ceiling": aged.now.remote,
        }
        for name, result in shown.items():
            output = result if self._is_masks else in_input(result, plan)
            self._scores[aged.age][name].add(aged.now.truth, output, origin=name, age_ns=0)

    def judged(self) -> tuple[JudgedAge, ...]:
        """Returns the accuracy at each age that was met: mean IoU, or mean average precision."""
        ages = self._table.header.ages_ms
        return tuple(
            JudgedAge(age_ms=ages[age], **{name: _rounded(each.accuracy()) for name, each in scores.items()})
            for age, scores in sorted(self._scores.items())
        )


def _rounded(accuracy: float) -> float:
    return 0.0 if np.isnan(accuracy) else round(accuracy, 4)
