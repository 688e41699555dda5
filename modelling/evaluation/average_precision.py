"""How well boxes were found: average precision and recall, by class and by size."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.imaging.boxes import areas, intersections, overlap
from shared.messages.results import Detections

Floats = npt.NDArray[np.float32]

_SAME = 0.5  # Intersection over union from which a found box is the true one.
_INSIDE = 0.5  # The share of a found box in a thing that does not count from which it is no error.


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of one class and size; NaN where there is nothing to divide by."""

    truths: int
    average_precision: float
    recall: float  # At the score that boxes are told from.
    precision: float


@dataclass(slots=True)
class BoxMatcher:
    """Counts, frame by frame, which found boxes are true ones.

    `smallest`: pixels, the root of the area from which a true box counts. What is smaller may be found or missed.
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
        """Count a frame with its true boxes N×4 (x1, y1, x2, y2 in the pixels of the found ones) and their classes."""
        counts = _sides(boxes) >= self.smallest
        for class_id in range(self.classes):
            self._add(
                class_id,
                found.boxes[found.class_ids == class_id],
                found.scores[found.class_ids == class_id],
                boxes[counts & (class_ids == class_id)],
                # Of any class: three pixels are as likely a person as a rider's wheel.
                boxes[~counts],
            )

    def figures(self, class_id: int, threshold: float) -> Found:
        """The figures of a class; recall and precision are those of boxes that score at least `threshold`."""
        scores = np.array(self._scores[class_id], np.float64)
        hits = np.array(self._hits[class_id], bool)
        truths = self.truths[class_id]
        told = scores >= threshold
        right = int(hits[told].sum())
        return Found(
            truths,
            average_precision(scores, hits, truths),
            right / truths if truths else float("nan"),
            right / int(told.sum()) if told.any() else float("nan"),
        )

    def _add(self, class_id: int, found: Floats, scores: Floats, boxes: Floats, uncounted: Floats) -> None:
        self.truths[class_id] += len(boxes)
        overlaps = overlap(found, boxes)
        is_free = np.ones(len(boxes), bool)
        for at in np.argsort(-scores, kind="stable"):
            open_overlaps = np.where(is_free, overlaps[at], -1.0)
            best = int(open_overlaps.argmax()) if len(boxes) else -1
            hit = best >= 0 and open_overlaps[best] >= _SAME
            if hit:
                is_free[best] = False
            elif _sides(found[at : at + 1])[0] < self.smallest or _lies_in(found[at], uncounted):
                continue
            self._scores[class_id].append(float(scores[at]))
            self._hits[class_id].append(bool(hit))


def average_precision(scores: npt.NDArray[np.float64], hits: npt.NDArray[np.bool_], truths: int) -> float:
    """The area under the falling envelope of precision over recall (PASCAL VOC since 2010); NaN without truths."""
    if not truths:
        return float("nan")
    right = np.cumsum(hits[np.argsort(-scores, kind="stable")])
    precision = right / np.arange(1, len(right) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(envelope * np.diff(right, prepend=0)) / truths)


def _lies_in(box: Floats, others: Floats) -> bool:
    shares = intersections(box[np.newaxis], others)[0] / max(float(areas(box[np.newaxis])[0]), 1e-9)
    return bool((shares >= _INSIDE).any())


def _sides(boxes: Floats) -> npt.NDArray[np.float64]:
    """The root of each box's area, in pixels."""
    return np.sqrt(areas(boxes))
