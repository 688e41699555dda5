"""Average precision, compared with values calculated by hand."""

import math

import numpy as np
import pytest

from modelling.evaluation.metrics import BoxMatcher, average_precision
from shared.messages.results import Detections

OBJECTS = np.array([[0, 0, 20, 20], [40, 0, 60, 20]], np.float32)


def found(boxes: list[list[float]], scores: list[float], class_ids: list[int] | None = None) -> Detections:
    """Returns predicted boxes, of class 0 by default."""
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(class_ids or [0] * len(boxes), np.uint16),
        np.array(scores, np.float32),
    )


def matched(detections: Detections, true: np.ndarray = OBJECTS, smallest: float = 6) -> BoxMatcher:
    """Returns a matcher with one frame, whose objects are all of class 0."""
    matcher = BoxMatcher(2, smallest)
    matcher.add(detections, true, np.zeros(len(true), np.intp))
    return matcher


def test_average_precision_is_the_area_under_the_envelope() -> None:
    """A hit, a miss and a hit for two objects give half at precision 1 and half at 2/3."""
    scores, hits = np.array([0.9, 0.8, 0.7]), np.array([True, False, True])
    assert average_precision(scores, hits, 2) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert average_precision(scores[::-1], hits[::-1], 2) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert average_precision(scores, hits, 4) == pytest.approx(0.25 * 1 + 0.25 * 2 / 3)


def test_average_precision_is_undefined_without_objects_and_zero_without_predictions() -> None:
    """A class that is not in a bag must not reduce the mean."""
    assert math.isnan(average_precision(np.array([0.5]), np.array([False]), 0))
    assert average_precision(np.empty(0), np.empty(0, bool), 3) == 0


def test_a_second_box_of_an_object_is_an_error() -> None:
    """A detector must report each object once."""
    matcher = matched(found([[0, 0, 20, 20], [1, 0, 21, 20], [40, 0, 60, 20]], [0.9, 0.8, 0.7]))
    metrics = matcher.metrics(0, threshold=0.75)
    assert (metrics.truths, metrics.recall, metrics.precision) == (2, 0.5, 0.5)
    assert matcher.frames[0].recall == 1.0, "of all boxes, whatever their score"
    assert metrics.average_precision == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_a_match_needs_an_iou_of_a_half_and_the_same_class() -> None:
    """The IoU of the first two boxes is 0.45 and 0.55."""
    assert matched(found([[0, 0, 20, 9]], [0.9])).metrics(0, 0.5).recall == 0
    assert matched(found([[0, 0, 20, 11]], [0.9])).metrics(0, 0.5).recall == 0.5
    other_class = matched(found([[0, 0, 20, 20]], [0.9], [1]))
    assert other_class.metrics(0, 0.5).recall == 0
    assert other_class.metrics(1, 0.5).precision == 0


def test_objects_below_the_smallest_size_are_ignored() -> None:
    """Finding or missing them changes no metric."""
    true = np.array([[0, 0, 20, 20], [40, 0, 44, 4]], np.float32)
    for detections in (found([[0, 0, 20, 20]], [0.9]), found([[0, 0, 20, 20], [40, 0, 44, 4]], [0.9, 0.95])):
        metrics = matched(detections, true).metrics(0, 0.5)
        assert (metrics.truths, metrics.recall, metrics.precision, metrics.average_precision) == (1, 1, 1, 1)
    larger = matched(found([[0, 0, 20, 20]], [0.9]), OBJECTS, smallest=30).metrics(0, 0.5)
    assert larger.truths == 0
    assert math.isnan(larger.precision)
