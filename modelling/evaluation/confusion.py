"""The confusion matrix of a segmentation, and its metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

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
