"""Temperature scaling and the reliability diagram."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelling.reuse.calibration import (
    BINS,
    CalibrationSamples,
    cross_fitted,
    fit_temperature,
    negative_log_likelihood,
    reliability,
)
from shared.task import calibrated_softmax


def _samples(temperature: float, count: int = 20_000, classes: int = 3, seed: int = 1) -> CalibrationSamples:
    """Samples whose scores are calibrated by `temperature`: the classes are drawn from those probabilities."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(0, 3, (count, classes)).astype(np.float32)
    limits = calibrated_softmax(scores, temperature).cumsum(axis=1)
    drawn = (generator.random((count, 1)) > limits).sum(axis=1)
    return CalibrationSamples(scores, np.minimum(drawn, classes - 1).astype(np.intp))


@pytest.mark.parametrize(("temperature", "classes"), [(0.5, 2), (2.5, 12)])
def test_the_temperature_of_the_samples_is_found(temperature: float, classes: int) -> None:
    """Within the error of 20,000 samples."""
    assert fit_temperature(_samples(temperature, classes=classes)) == pytest.approx(temperature, rel=0.05)


@given(st.floats(0.3, 4), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_no_temperature_is_likelier_than_the_fitted_one(temperature: float, seed: int) -> None:
    """Compared with temperatures from 0.05 to 20."""
    samples = _samples(temperature, count=300, seed=seed)
    fitted = negative_log_likelihood(samples, fit_temperature(samples))
    others = [negative_log_likelihood(samples, float(other)) for other in np.geomspace(0.05, 20, 50)]
    assert fitted <= min(others) + 1e-6


def test_without_samples_the_temperature_is_one() -> None:
    """A detector may find nothing."""
    assert fit_temperature(CalibrationSamples(np.empty((0, 2), np.float32), np.empty(0, np.intp))) == 1.0


def test_temperature_scaling_reduces_the_calibration_error() -> None:
    """An overconfident model is wrong more often than its confidence admits."""
    samples = _samples(2.5)
    before, after = reliability([(samples, 1.0)]), reliability([(samples, fit_temperature(samples))])
    assert before.expected_error > 0.1
    assert after.expected_error < 0.01
    filled = before.counts > 200
    assert (before.confidences > before.accuracies)[filled].all()


def test_the_diagram_of_a_small_example_is_exact() -> None:
    """Two certain answers, one of them wrong, and one uncertain right one; a confidence of 1 is in the last bin."""
    scores = np.array([[0, 100], [0, 100], [0, np.log(0.65 / 0.35)]], np.float32)
    diagram = reliability([(CalibrationSamples(scores, np.array([1, 0, 1], np.intp)), 1.0)])
    assert diagram.counts.tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 2]
    assert diagram.accuracies[[6, 9]].tolist() == [1.0, 0.5]
    assert diagram.confidences[[6, 9]].tolist() == pytest.approx([0.65, 1.0])
    assert diagram.expected_error == pytest.approx((0.35 + 2 * 0.5) / 3)
    assert len(diagram.counts) == BINS


@pytest.mark.parametrize("drives", [1, 2, 5])
def test_the_diagram_uses_temperatures_of_other_drives(drives: int) -> None:
    """Each half of the samples has the temperature of the other half, and no sample is lost."""
    parts = [_samples(1.0 if index % 2 == 0 else 3.0, count=2000, seed=index) for index in range(drives)]
    fitted = cross_fitted(parts)
    assert sum(len(samples.classes) for samples, _ in fitted) == drives * 2000
    if drives > 1:
        assert [temperature for _, temperature in fitted] == pytest.approx([3.0, 1.0], rel=0.15)
