"""The confidence in a local model's answer, task by task."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.task import (
    CONFIDENCE_HEAD,
    Confidence,
    ConfidenceError,
    calibrated_sigmoid,
    calibrated_softmax,
    log_odds,
    log_probabilities,
    task_named,
)
from tests.shared.tasks.parts import manifest


def _confidence(task: str, outputs: dict[str, Any], temperature: float = 1.0) -> Confidence:
    arrays = {name: np.array(values, np.float32) for name, values in outputs.items()}
    return task_named(task).confidence(arrays, manifest(task), temperature)


def test_of_two_labels_the_second_ones_probability_counts() -> None:
    """A low one is a certain no."""
    got = _confidence("classification", {"scores": [0.9, 0.1]})
    assert got.two_sided
    assert got.scores.tolist() == pytest.approx([0.1])
    assert got.lowest == pytest.approx(0.9)


def test_of_more_labels_the_highest_probability_counts() -> None:
    """The others only share what is left."""
    got = _confidence("classification", {"scores": [0.2, 0.7, 0.1]})
    assert not got.two_sided
    assert got.scores.tolist() == pytest.approx([0.7])
    assert got.lowest == pytest.approx(0.7)


def test_a_segmentation_counts_the_pixels_that_are_certain() -> None:
    """The scores are those before softmax, and coarser than the mask."""
    sure, unsure = [9.0, 0.0, 0.0], [1.0, 0.5, 0.0]
    got = _confidence("segmentation", {CONFIDENCE_HEAD: [[sure, sure, unsure, sure]], "mask": np.zeros((40, 60))})
    assert not got.two_sided
    assert got.scores.tolist() == [0.75]


def test_a_segmentation_without_scores_has_no_confidence() -> None:
    """The error names the missing output."""
    with pytest.raises(ConfidenceError, match="no output confidence"):
        _confidence("segmentation", {"mask": np.zeros((40, 60))})


def test_of_a_detection_every_box_counts_once() -> None:
    """Suppressed boxes and background do not count; boxes below the score threshold do, since they may be objects."""
    corners = [[0, 0, 20, 20], [1, 1, 20, 20], [30, 10, 40, 30], [40, 10, 50, 30]]
    got = _confidence("detection", {"boxes": corners, "scores": [[0.6, 0, 0], [0.9, 0, 0], [0, 0.2, 0], [0, 0.001, 0]]})
    assert got.two_sided
    assert got.scores.tolist() == pytest.approx([0.9, 0.2])
    assert got.lowest == pytest.approx(0.8)


def test_an_empty_scene_is_certain() -> None:
    """No box has a score that could be an object's."""
    got = _confidence("detection", {"boxes": [[0, 0, 20, 20]], "scores": [[0.001, 0, 0]]})
    assert len(got.scores) == 0
    assert got.lowest == 1.0


def test_raw_tensors_have_no_confidence() -> None:
    """Their meaning is unknown."""
    with pytest.raises(ConfidenceError, match="raw tensors"):
        task_named("tensors").confidence({}, None, 1.0)


@pytest.mark.parametrize(
    ("task", "outputs"),
    [
        ("classification", {"scores": [0.1, 0.9]}),
        ("classification", {"scores": [0.1, 0.8, 0.1]}),
        ("detection", {"boxes": [[0, 0, 20, 20]], "scores": [[0.9, 0, 0]]}),
    ],
)
def test_a_higher_temperature_lowers_the_confidence(task: str, outputs: dict[str, Any]) -> None:
    """A temperature of 1 changes nothing."""
    confidences = [_confidence(task, outputs, temperature).lowest for temperature in (0.5, 1.0, 2.0, 100.0)]
    assert sorted(confidences, reverse=True) == confidences
    assert confidences[1] == pytest.approx(0.8 if len(outputs["scores"]) == 3 else 0.9)
    assert confidences[3] == pytest.approx(1 / 3 if len(outputs["scores"]) == 3 else 0.5, abs=0.02)


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=20), st.floats(0.05, 20))
def test_temperature_keeps_the_order_of_the_classes(weights: list[float], temperature: float) -> None:
    """It changes the confidence, never the answer."""
    probabilities = np.array(weights, np.float32) / np.float32(sum(weights))
    got = calibrated_softmax(log_probabilities(probabilities), temperature)
    assert got.sum() == pytest.approx(1, abs=1e-5)
    assert got[probabilities.argmax()] == got.max()


@given(st.floats(0, 1, width=32))
def test_log_odds_are_the_inverse_of_the_sigmoid(probability: float) -> None:
    """Certain probabilities stay finite."""
    odds = log_odds(np.array([probability], np.float32))
    assert np.isfinite(odds).all()
    assert calibrated_sigmoid(odds, 1.0)[0] == pytest.approx(probability, abs=1e-6)
