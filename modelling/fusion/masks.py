"""The fusion of two segmentations: counts the true classes of each cell of the table, and chooses the cell's class.

The rule maximises the mean IoU, which is not the share of right pixels. To predict class c for a pixel that is of c with the
probability p adds p to the intersection I of c and 1 - p to its union U. To first order, the IoU I/U so changes by
(p·(1 + IoU) - IoU) / U, and the class with the largest gain is chosen; IoU and U follow from the choice, so the choice is
repeated until it settles.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.presenting.flow import picture
from edge.presenting.fuse import MaskPair, fused_mask, table_indices
from edge.presenting.fusion_table import FusionTable, JudgedAge, table_shape
from edge.presenting.warping import moved_mask
from modelling.evaluation.confusion import UNLABELLED, Confusion
from modelling.fusion.recording import AgedResult

Counts = npt.NDArray[np.float64]  # cells×remote×local×true class: pixels.

_ROUNDS = 40
_DAMPING = 0.5  # Share of the weights of the round before.
_PRIOR_PIXELS = 20.0  # Weight of all cells with the same two classes, for cells with few pixels.


class MaskCounts:
    """Pixels by age, cell of the table and true class."""

    def __init__(self, ages: int, names: Sequence[str]) -> None:
        self._names = names
        labels = len(names)
        self._shape = table_shape(ages, labels)
        self._counts = np.zeros((ages, int(np.prod(self._shape[1:])) * labels), np.int64)
        self.ticks = np.zeros(ages, np.int64)

    def add(self, each: AgedResult) -> None:
        """Adds the pixels of a tick."""
        labels, plan = len(self._names), each.now.tick.geometry
        moved = moved_mask(each.source.remote, each.motion, plan)
        places = table_indices(labels, MaskPair(moved, each.now.local, each.motion, plan))
        truth = picture(each.now.truth, plan)
        known = truth < labels
        cells = (places * labels + truth)[known]
        self._counts[each.age] += np.bincount(cells, minlength=self._counts.shape[1])
        self.ticks[each.age] += 1

    def arrays(self, ages: Sequence[int]) -> dict[str, npt.NDArray[np.uint8]]:
        """Returns the arrays of a table with the given ages, which have pixels."""
        labels = len(self._names)
        is_counted = np.array([name != UNLABELLED for name in self._names])
        chosen = [choose(self._counts[age].reshape(-1, labels, labels, labels), is_counted) for age in ages]
        return {"classes": np.stack(chosen).reshape(len(ages), *self._shape[1:])}


def choose(pixels: npt.NDArray[np.int64], is_counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Returns the class of each cell with which the mean IoU of the counted classes is highest.

    A cell without pixels takes the local class.
    """
    labels = len(is_counted)
    counts = pixels.astype(np.float64)
    alone = np.broadcast_to(np.arange(labels), counts.shape[:-1])
    by_classes = counts.sum(axis=0, keepdims=True)
    by_classes /= np.maximum(by_classes.sum(axis=-1, keepdims=True), 1)
    shares = counts + _PRIOR_PIXELS * by_classes
    total = shares.sum(axis=-1, keepdims=True)
    shares /= np.maximum(total, 1e-9)
    usable = is_counted & pixels.any(axis=(0, 1, 2))
    candidates = [alone, np.broadcast_to(np.arange(labels)[:, np.newaxis], alone.shape)]  # Local or remote alone.
    weights: Any = None
    classes = shares.argmax(axis=-1)
    for _ in range(_ROUNDS):
        candidates.append(np.where(total[..., 0] > 0, classes, alone))
        iou, union = _scores(counts, candidates[-1])
        now = np.stack([(1 + iou) / union, iou / union])
        weights = now if weights is None else _DAMPING * weights + (1 - _DAMPING) * now
        gain = np.where(is_counted, shares * weights[0] - weights[1], 0.0)
        gain[..., is_counted & ~usable] = -np.inf
        classes = gain.argmax(axis=-1)
    best = max(candidates, key=lambda each: float(_scores(counts, each)[0][usable].sum()))
    return best.astype(np.uint8)


def _scores(counts: Counts, classes: npt.NDArray[np.intp]) -> tuple[Counts, Counts]:
    """Returns IoU and union of each class if each cell is given a class."""
    labels = counts.shape[-1]
    confusion = np.zeros((labels, labels))
    np.add.at(confusion, classes.ravel(), counts.reshape(-1, labels))
    right = np.diag(confusion)
    union = np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1) - right, 1.0)
    return right / union, union


class MaskJudge:
    """Compares what presenters show on drives that the table was not made from."""

    def __init__(self, table: FusionTable, names: Sequence[str]) -> None:
        self._table = table
        self._names = names
        self._confusions: dict[tuple[int, str], Confusion] = {}

    def add(self, each: AgedResult) -> None:
        """Adds a tick."""
        plan = each.now.tick.geometry
        moved = moved_mask(each.source.remote, each.motion, plan)
        shown = {
            "local": each.now.local.result,
            "hold": each.source.remote,
            "warp": moved,
            "fuse": fused_mask(self._table, each.age, MaskPair(moved, each.now.local, each.motion, plan)),
            "ceiling": each.now.remote,
        }
        labels, truth = len(self._names), each.now.truth
        for name, mask in shown.items():
            known = (truth < labels) & (mask < labels)
            before = self._confusions.get((each.age, name), Confusion.empty(labels))
            self._confusions[each.age, name] = before.with_masks(truth[known], mask[known])

    def judged(self) -> tuple[JudgedAge, ...]:
        """Returns the mean IoU at each age that was met."""
        ages = self._table.header.ages_ms
        met = sorted({age for age, _ in self._confusions})
        names = ("local", "hold", "warp", "fuse", "ceiling")
        return tuple(JudgedAge(age_ms=ages[age], **{name: self._mean_iou(age, name) for name in names}) for age in met)

    def _mean_iou(self, age: int, name: str) -> float:
        return round(self._confusions[age, name].mean_iou(self._names), 4)
