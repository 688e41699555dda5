"""The outputs of a model as a task sees them: heads, and the calibrated confidence in an answer.

A model's probabilities are usually too high or too low as a whole. One number, the temperature, corrects them: the scores
before softmax or sigmoid are divided by it (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError

Floats = npt.NDArray[np.float32]

CONFIDENCE_HEAD = (
    "confidence"  # A segmentation's optional output: h×w×C scores before softmax, maybe coarser than the mask.
)

_SMALLEST = 1e-12  # Keeps the logarithm of a probability finite.


class Head(NamedTuple):
    """An output of a model, as an engine returns it."""

    kinds: tuple[str, ...]  # The kinds of tensors that an engine converts to it; see a manifest's OutputKind.
    dtype: str
    shape: tuple[int | str, ...]  # Without the batch; "height" and "width" of the input, "labels", or -1 for any size.


class ConfidenceError(SkylaneError):
    """The confidence in a model's answer cannot be computed."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """The confidence in the answer to one frame: calibrated scores, one for each part that must be certain."""

    scores: Floats  # 0..1; empty if nothing was found that could be uncertain.
    two_sided: bool  # Whether a low score is certain too: the probability of "yes", rather than of the answer.

    @property
    def lowest(self) -> float:
        """The confidence in the least certain part of the answer, 0 to 1; of a two-sided score p it is max(p, 1 - p)."""
        if not len(self.scores):
            return 1.0
        certain = np.maximum(self.scores, 1 - self.scores) if self.two_sided else self.scores
        return float(certain.min())


def calibrated_softmax(scores: npt.NDArray[Any], temperature: float) -> Floats:
    """Returns the softmax over the last axis of scores divided by the temperature."""
    scaled = scores.astype(np.float32) / np.float32(temperature)
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float32)


def calibrated_sigmoid(scores: npt.NDArray[Any], temperature: float) -> Floats:
    """Returns the sigmoid of scores divided by the temperature; computed by tanh, which cannot overflow."""
    scaled = scores.astype(np.float32) / np.float32(temperature)
    return np.asarray(0.5 * np.tanh(0.5 * scaled) + 0.5, np.float32)


def log_probabilities(probabilities: npt.NDArray[Any]) -> Floats:
    """Returns scores whose softmax are the given probabilities."""
    return np.log(np.maximum(probabilities.astype(np.float32), _SMALLEST))


def log_odds(probabilities: npt.NDArray[Any]) -> Floats:
    """Returns scores whose sigmoid are the given probabilities."""
    return log_probabilities(probabilities) - log_probabilities(1 - probabilities.astype(np.float32))
