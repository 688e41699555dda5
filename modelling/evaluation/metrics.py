"""The metrics of masks and boxes: confusion matrix and IoU; average precision and recall by class and size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shared.imaging.boxes import areas, intersections, pairwise_iou
from shared.messages.results import Detections

Floats = npt.NDArray[np.float32]
TrueObjects = tuple[Floats, npt.NDArray[np.intp]]  # True boxes N×4 (x1, y1, x2, y2), and their class ids.
Tallies = npt.NDArray[np.int64]  # …×3×classes: pixels that are right, those of the true class, and those predicted.

_MIN_IOU = 0.5  # Smallest intersection over union of a predicted box and the true box that it matches.
_MIN_INSIDE = 0.5  # The share of a predicted box in an uncounted object that makes it neither right nor wrong.


@dataclass(frozen=True, slots=True)
class DetectionMetrics:
    """The metrics of one class and size; NaN if undefined."""

    truths: int
    average_precision: float
    recall: float  # Counts boxes from the score threshold on.
    precision: float  # The same.


@dataclass(frozen=True, slots=True)
class MatchedBoxes:
    """The boxes of a frame by class: the scores of the found ones, whether each matches a true one, and the true ones."""

    scores: tuple[npt.NDArray[np.float64], ...]
    hits: tuple[npt.NDArray[np.bool_], ...]
    truths: tuple[int, ...]

    @property
    def recall(self) -> float:
        """The share of the true boxes that were found; NaN without any."""
        truths = sum(self.truths)
        return sum(int(each.sum()) for each in self.hits) / truths if truths else float("nan")


def matched_boxes(found: Detections, truth: TrueObjects, classes: int, smallest: float) -> MatchedBoxes:
    """Matches the found boxes of a frame with the true ones, which are in the same pixels.

    `smallest` is the root of the area, in pixels, of the smallest true box that counts; smaller ones may be found or missed.
    """
    boxes, class_ids = truth
    counts = _root_areas(boxes) >= smallest
    uncounted = boxes[~counts]  # All classes, because objects of a few pixels are hard to classify.
    scores, hits, truths = [], [], []
    for class_id in range(classes):
        of_class = found.class_ids == class_id
        true = boxes[counts & (class_ids == class_id)]
        outcomes = list(_matched(found.boxes[of_class], found.scores[of_class], true, uncounted, smallest))
        scores.append(np.array([score for score, _ in outcomes], np.float64))
        hits.append(np.array([hit for _, hit in outcomes], bool))
        truths.append(len(true))
    return MatchedBoxes(tuple(scores), tuple(hits), tuple(truths))


def _matched(
    found: Floats, scores: Floats, boxes: Floats, uncounted: Floats, smallest: float
) -> Iterator[tuple[float, bool]]:
    """Yields the score of each box of a class that counts, the highest first, and whether it matches a true one."""
    overlaps = pairwise_iou(found, boxes)
    is_free = np.ones(len(boxes), bool)
    for index in np.argsort(-scores, kind="stable"):
        free_overlaps = np.where(is_free, overlaps[index], -1.0)
        best = int(free_overlaps.argmax()) if len(boxes) else -1
        hit = best >= 0 and bool(free_overlaps[best] >= _MIN_IOU)
        if hit:
            is_free[best] = False
        elif _root_areas(found[index : index + 1])[0] < smallest or _lies_in(found[index], uncounted):
            continue
        yield float(scores[index]), hit


@dataclass(frozen=True, slots=True)
class BoxMatcher:
    """Matches predicted with true boxes, frame by frame; `smallest` as in `matched_boxes`."""

    classes: int
    smallest: float
    frames: list[MatchedBoxes] = field(default_factory=list)

    def add(self, found: Detections, boxes: Floats, class_ids: npt.NDArray[np.intp]) -> None:
        """Adds a frame with its true boxes N×4 (x1, y1, x2, y2 in pixels of the predicted ones) and their classes."""
        self.frames.append(matched_boxes(found, (boxes, class_ids), self.classes, self.smallest))

    def metrics(self, class_id: int, threshold: float) -> DetectionMetrics:
        """Returns the metrics of a class; recall and precision count boxes with a score of at least `threshold`."""
        scores = np.concatenate([np.empty(0), *(frame.scores[class_id] for frame in self.frames)])
        hits = np.concatenate([np.empty(0, bool), *(frame.hits[class_id] for frame in self.frames)])
        truths = sum(frame.truths[class_id] for frame in self.frames)
        selected = scores >= threshold
        correct = int(hits[selected].sum())
        return DetectionMetrics(
            truths,
            average_precision(scores, hits, truths),
            correct / truths if truths else float("nan"),
            correct / int(selected.sum()) if selected.any() else float("nan"),
        )


def average_precision(scores: npt.NDArray[np.float64], hits: npt.NDArray[np.bool_], truths: int) -> float:
    """Returns the average precision of found boxes, of which `hits` match one of so many true ones; NaN without truths."""
    ordered = hits[np.argsort(-scores, kind="stable")]
    return float(precision_area(ordered, np.ones(len(ordered)), np.array(truths)))


def precision_area(
    hits: npt.NDArray[Any], found: npt.NDArray[Any], truths: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Returns the area under the falling envelope of precision over recall (PASCAL VOC since 2010); NaN without truths.

    Args:
        hits: The number of boxes that match a true one, …×N, by falling score.
        found: The number of all boxes.
        truths: The number of true boxes, of the shape of all but the last axis.
    """
    precision = np.cumsum(hits, axis=-1) / np.maximum(np.cumsum(found, axis=-1), 1e-12)
    envelope = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    area = (envelope * hits).sum(axis=-1)
    return np.asarray(np.divide(area, truths, out=np.full(area.shape, np.nan), where=truths > 0))


def defined_mean(
    values: npt.NDArray[np.float64], is_defined: npt.NDArray[np.bool_], axis: int
) -> npt.NDArray[np.float64]:
    """Returns the mean along an axis of the values that are defined; NaN where none is."""
    number = is_defined.sum(axis=axis)
    total = np.where(is_defined, values, 0.0).sum(axis=axis)
    return np.asarray(np.divide(total, number, out=np.full(number.shape, np.nan), where=number > 0))


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

    @property
    def tallies(self) -> Tallies:
        """The pixels by class that are right, that are of the true class, and that are predicted; 3×classes."""
        return np.stack((np.diag(self.counts), self.counts.sum(axis=1), self.counts.sum(axis=0)))

    def mean_iou(self, names: Sequence[str]) -> float:
        """Returns the mean IoU over the classes in the true labels except `none`; NaN without any.

        `names` are the names of all classes.
        """
        return float(mean_iou(self.tallies, counted_classes(names)))

    def intersection_over_union(self) -> npt.NDArray[np.float64]:
        """Returns the IoU of each class; NaN for a class that is in neither mask."""
        is_in_one = self.counts.any(axis=0) | self.counts.any(axis=1)
        return np.where(is_in_one, ious(self.tallies), np.nan)


def counted_classes(names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Returns which classes are part of the mean IoU."""
    return np.array([name != UNLABELLED for name in names])


def tallies(truth: npt.NDArray[np.uint8], output: npt.NDArray[np.uint8] | None, classes: int) -> Tallies:
    """Returns, by class, the right pixels, the pixels of the true class and the predicted pixels; 3×classes.

    Without an output (None), no pixel is right and none is predicted.
    """
    known = truth < classes
    if output is None:
        true = np.bincount(truth[known], minlength=classes)
        return np.stack((np.zeros_like(true), true, np.zeros_like(true)))
    known &= output < classes
    return Confusion.empty(classes).with_masks(truth[known], output[known]).tallies


def ious(summed: npt.NDArray[np.number]) -> npt.NDArray[np.float64]:
    """Returns the IoU of each class from summed tallies …×3×classes; 0 for a class that no mask has."""
    right, true, predicted = (summed[..., row, :].astype(np.float64) for row in range(3))
    return right / np.maximum(true + predicted - right, 1.0)


def mean_iou(summed: npt.NDArray[np.number], counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Returns the mean IoU over the counted classes that have true pixels, from summed tallies …×3×classes.

    NaN where no counted class has any.
    """
    return defined_mean(ious(summed), counted & (summed[..., 1, :] > 0), axis=-1)
