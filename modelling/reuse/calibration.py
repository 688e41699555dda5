"""Temperature scaling, and the reliability diagram that shows its effect.

The temperature is the number T that minimises the negative log likelihood of the true classes under softmax(scores / T) on
frames that the model was not trained on: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 4.2.
The expected calibration error is the mean distance of confidence and accuracy over equal ranges of the confidence,
weighted by the number of answers (section 2 there).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.task import Floats, calibrated_softmax

BINS = 10  # Equal ranges of the confidence in a reliability diagram.

_LOWEST, _HIGHEST = 0.05, 20.0  # Range of the temperature.
_STEPS = 60  # Each shortens the range of its logarithm by the golden ratio; the last one is shorter than 1e-11.
_GOLDEN = (np.sqrt(5) - 1) / 2
_SMALLEST = 1e-12  # Keeps the logarithm of a probability finite.


@dataclass(frozen=True, slots=True)
class CalibrationSamples:
    """Scores before softmax, and the true classes."""

    scores: Floats  # N×C; of a yes-or-no question, the scores of no (0) and yes.
    classes: npt.NDArray[np.intp]  # N

    @classmethod
    def merged(cls, parts: Sequence["CalibrationSamples"]) -> "CalibrationSamples":
        """Returns the samples of all parts."""
        return cls(np.concatenate([each.scores for each in parts]), np.concatenate([each.classes for each in parts]))


@dataclass(frozen=True, slots=True)
class Reliability:
    """A reliability diagram: for each range of the confidence the answers in it. A mean without answers is NaN."""

    counts: npt.NDArray[np.int64]
    confidences: npt.NDArray[np.float64]  # Mean confidence.
    accuracies: npt.NDArray[np.float64]  # Share of right answers.

    @property
    def expected_error(self) -> float:
        """The expected calibration error, 0 to 1; NaN without answers."""
        filled = self.counts > 0
        if not filled.any():
            return float("nan")
        gaps = np.abs(self.confidences[filled] - self.accuracies[filled])
        return float(np.average(gaps, weights=self.counts[filled]))


def negative_log_likelihood(samples: CalibrationSamples, temperature: float) -> float:
    """Returns the mean negative logarithm of the true classes' probabilities."""
    probabilities = calibrated_softmax(samples.scores, temperature)
    of_truth = probabilities[np.arange(len(samples.classes)), samples.classes].astype(np.float64)
    return float(-np.log(np.maximum(of_truth, _SMALLEST)).mean())


def fit_temperature(samples: CalibrationSamples) -> float:
    """Returns the temperature with the smallest negative log likelihood; 1 without samples.

    The likelihood has one maximum over the temperature, so a golden section search over its logarithm finds it.
    """
    if not len(samples.classes):
        return 1.0
    low, high = np.log(_LOWEST), np.log(_HIGHEST)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = (negative_log_likelihood(samples, float(np.exp(at))) for at in (left, right))
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = negative_log_likelihood(samples, float(np.exp(left)))
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = negative_log_likelihood(samples, float(np.exp(right)))
    return float(np.exp((low + high) / 2))


def reliability(parts: Sequence[tuple[CalibrationSamples, float]]) -> Reliability:
    """Returns the diagram of samples, each part with its temperature.

    The confidence is the probability of the most probable class.
    """
    confidences, correct = [], []
    for samples, temperature in parts:
        probabilities = calibrated_softmax(samples.scores, temperature)
        confidences.append(probabilities.max(axis=1))
        correct.append(probabilities.argmax(axis=1) == samples.classes)
    confidence, is_right = np.concatenate(confidences).astype(np.float64), np.concatenate(correct)
    bins = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    with np.errstate(invalid="ignore"):
        means = np.bincount(bins, confidence, BINS) / counts
        accuracies = np.bincount(bins, is_right, BINS) / counts
    return Reliability(counts, means, accuracies)


def cross_fitted(drives: Sequence[CalibrationSamples]) -> list[tuple[CalibrationSamples, float]]:
    """Returns each half of the drives with the temperature that fits the other half.

    With one drive, its first and second half take the place of the drives.
    """
    if len(drives) == 1:
        middle = len(drives[0].classes) // 2
        drives = [
            CalibrationSamples(drives[0].scores[part], drives[0].classes[part])
            for part in (slice(middle), slice(middle, None))
        ]
    halves = [CalibrationSamples.merged(drives[start::2]) for start in (0, 1)]
    return [(halves[0], fit_temperature(halves[1])), (halves[1], fit_temperature(halves[0]))]
