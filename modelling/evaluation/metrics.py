"""The metrics of masks and boxes: confusion matrix and IoU; average precision and recall by class and size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shared.imaging.boxes import areas, intersections, pairwise_iou
from shared.messages.results import Detections

Floats = npt.NDArray[np.float32]

_MIN_IOU = 0.5  # Smallest intersection over union of a predicted box and the true box that it matches.
_MIN_INSIDE = 0.5  # The share of a predicted box in an uncounted object that makes it neither right nor wrong.


@dataclass(frozen=True, slots=True)
class DetectionMetrics:
    """The metrics of one class and size; NaN if undefined."""

    truths: int
    average_precision: float
    recall: float  # Counts boxes from the score threshold on.
    precision: float  # The same.


@dataclass(slots=True)
class BoxMatcher:
    """Matches predicted with true boxes, frame by frame.

    `smallest` is the root of the area, in pixels, of the smallest true box that counts; smaller ones may be found or missed.
    """

    classes: int
    smallest: float
    truths: list[int] = field(init=False)
    _scores: list[list[float]] = field(init=False)
    _hits: list[list[bool]] = field(init=False)

    def __post_init__(self) -> None:
        self.truths = [0] * self.classes
        self._scores = [[] for _ in range(self.classes)]
        self._hits = [[] for _ in range(self.classes)]

    def add(self, found: Detections, boxes: Floats, class_ids: npt.NDArray[np.intp]) -> None:
        """Adds a frame with its true boxes N×4 (x1, y1, x2, y2 in pixels of the predicted ones) and their classes."""
        counts = _root_areas(boxes) >= self.smallest
        for class_id in range(self.classes):
            self._add(
                class_id,
                found.boxes[found.class_ids == class_id],
                found.scores[found.class_ids == class_id],
                boxes[counts & (class_ids == class_id)],
                boxes[~counts],  # All classes, because objects of a few pixels are hard to classify.
            )

    def scored(self, class_id: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Returns the scores of the counted boxes of a class, and whether each matches a true box."""
        return np.array(self._scores[class_id], np.float64), np.array(self._hits[class_id], bool)

    def metrics(self, class_id: int, threshold: float) -> DetectionMetrics:
        """Returns the metrics of a class; recall and precision count boxes with a score of at least `threshold`."""
        scores, hits = self.scored(class_id)
        truths = self.truths[class_id]
        selected = scores >= threshold
        correct = int(hits[selected].sum())
        return DetectionMetrics(
            truths,
            average_precision(scores, hits, truths),
            correct / truths if truths else float("nan"),
            correct / int(selected.sum()) if selected.any() else float("nan"),
        )

    def _add(self, class_id: int, found: Floats, scores: Floats, boxes: Floats, uncounted: Floats) -> None:
        self.truths[class_id] += len(boxes)
        overlaps = pairwise_iou(found, boxes)
        is_free = np.ones(len(boxes), bool)
        for index in np.argsort(-scores, kind="stable"):
            free_overlaps = np.where(is_free, overlaps[index], -1.0)
            best = int(free_overlaps.argmax()) if len(boxes) else -1
            hit = best >= 0 and free_overlaps[best] >= _MIN_IOU
            if hit:
                is_free[best] = False
            elif _root_areas(found[index : index + 1])[0] < self.smallest or _lies_in(found[index], uncounted):
                continue
            self._scores[class_id].append(float(scores[index]))
            self._hits[class_id].append(bool(hit))


def average_precision(scores: npt.NDArray[np.float64], hits: npt.NDArray[np.bool_], truths: int) -> float:
    """Returns the area under the falling envelope of precision over recall (PASCAL VOC since 2010); NaN without truths."""
    if not truths:
        return float("nan")
    correct = np.cumsum(hits[np.argsort(-scores, kind="stable")])
    precision = correct / np.arange(1, len(correct) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(envelope * np.diff(correct, prepend=0)) / truths)


def _lies_in(box: Floats, others: Floats) -> bool:
    shares = intersections(box[np.newaxis], others)[0] / max(float(areas(box[np.newaxis])[0]), 1e-9)
    return bool((shares >= _MIN_INSIDE).any())


def _root_areas(boxes: Floats) -> npt.NDArray[np.float64]:
    """Returns the root of each box's area, in pixels."""
    return np.sqrt(areas(boxes))


SIZES = (6.0, 12.0, 24.0)  # Smallest counted objects: root of the area in pixels of the model's input.
HEADLINE_SIZE = 12.0  # The size of the summary value.

LOW_SCORE = 0.05  # Lower scores of a box hardly change the precision-recall curve, but cost the most time.


def matchers_by_size(classes: int) -> dict[float, BoxMatcher]:
    """Returns an empty matcher for each size."""
    return {size: BoxMatcher(classes, size) for size in SIZES}


def metrics_by_size(matchers: dict[float, BoxMatcher], names: Sequence[str], threshold: float) -> dict[str, Any]:
    """Returns rounded metrics by class name and size, None for undefined ones; see `BoxMatcher.metrics`."""
    return {
        name: {f"from_{size:g}_px": _rounded(matcher, class_id, threshold) for size, matcher in matchers.items()}
        for class_id, name in enumerate(names)
    }


def _rounded(matcher: BoxMatcher, class_id: int, threshold: float) -> dict[str, Any]:
    metrics = matcher.metrics(class_id, threshold)
    values = {name: getattr(metrics, name) for name in ("average_precision", "recall", "precision")}
    return {"truths": metrics.truths} | {
        name: None if np.isnan(value) else round(value, 4) for name, value in values.items()
    }


UNLABELLED = "none"  # The class of pixels without a class: an error where predicted, but not part of the mean IoU.


@dataclass(frozen=True, slots=True)
class Confusion:
    """`counts` is classes×classes int64: pixels by true class (row) and predicted class (column)."""

    counts: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, classes: int) -> Self:
        """Returns a matrix of zeros."""
        return cls(np.zeros((classes, classes), np.int64))

    def with_masks(self, truth: npt.NDArray[np.uint8], prediction: npt.NDArray[np.uint8]) -> "Confusion":
        """Returns the sum with two masks of equal shape, whose class ids are below the number of classes."""
        classes = len(self.counts)
        pairs = truth.astype(np.int64).ravel() * classes + prediction.ravel()
        return Confusion(self.counts + np.bincount(pairs, minlength=classes**2).reshape(classes, classes))

    @property
    def pixel_accuracy(self) -> float:
        """The share of correctly predicted pixels; NaN without pixels."""
        return float(np.trace(self.counts) / self.counts.sum()) if self.counts.any() else float("nan")

    def mean_iou(self, names: Sequence[str]) -> float:
        """Returns the mean IoU over the classes in the true labels except `none`; NaN without any.

        `names` are the names of all classes.
        """
        present = self.counts.any(axis=1) & np.array([name != UNLABELLED for name in names])
        return float(self.intersection_over_union()[present].mean()) if present.any() else float("nan")

    def intersection_over_union(self) -> npt.NDArray[np.float64]:
        """Returns the IoU of each class; NaN for a class that is in neither mask."""
        intersection = np.diag(self.counts).astype(np.float64)
        union = self.counts.sum(axis=0) + self.counts.sum(axis=1) - intersection
        return np.asarray(np.divide(intersection, union, out=np.full_like(intersection, np.nan), where=union > 0))
