"""How often a class was taken for another, and the figures that follow from it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Confusion:
    """`counts` classes×classes int64: pixels of the true class (row) that were predicted as a class (column)."""

    counts: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, classes: int) -> Self:
        """Nothing counted yet."""
        return cls(np.zeros((classes, classes), np.int64))

    def with_masks(self, truth: npt.NDArray[np.uint8], prediction: npt.NDArray[np.uint8]) -> "Confusion":
        """With two masks of one shape added, class ids below the number of classes."""
        classes = len(self.counts)
        pairs = truth.astype(np.int64).ravel() * classes + prediction.ravel()
        return Confusion(self.counts + np.bincount(pairs, minlength=classes**2).reshape(classes, classes))

    @property
    def pixel_accuracy(self) -> float:
        """The share of pixels that were predicted right; NaN where none was counted."""
        return float(np.trace(self.counts) / self.counts.sum()) if self.counts.any() else float("nan")

    def intersection_over_union(self) -> npt.NDArray[np.float64]:
        """Of each class, right / (true or predicted); NaN for a class that neither mask held."""
        right = np.diag(self.counts).astype(np.float64)
        either = self.counts.sum(axis=0) + self.counts.sum(axis=1) - right
        return np.asarray(np.divide(right, either, out=np.full_like(right, np.nan), where=either > 0))
