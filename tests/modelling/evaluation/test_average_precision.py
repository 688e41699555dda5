"""Average precision: held to figures worked out by hand."""

import math

import numpy as np
import pytest

from modelling.evaluation.average_precision import BoxMatcher, average_precision
from shared.messages.results import Detections

THINGS = np.array([[0, 0, 20, 20], [40, 0, 60, 20]], np.float32)


def found(boxes: list[list[float]], scores: list[float], class_ids: list[int] | None = None) -> Detections:
    """Boxes of one class, or of the given ones."""
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(class_ids or [0] * len(boxes), np.uint16),
        np.array(scores, np.float32),
    )


def counted(detections: Detections, true: np.ndarray = THINGS, smallest: float = 6) -> BoxMatcher:
    """One frame whose things are all of class 0."""
    count = BoxMatcher(2, smallest)
    count.add(detections, true, np.zeros(len(true), np.intp))
    return count


def test_the_area_is_that_under_the_envelope_of_precision_over_recall() -> None:
    """A hit, a miss, a hit of two things: half at a precision of 1, half at 2/3."""
    scores, hits = np.array([0.9, 0.8, 0.7]), np.array([True, False, True])
    assert average_precision(scores, hits, 2) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert average_precision(scores[::-1], hits[::-1], 2) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert average_precision(scores, hits, 4) == pytest.approx(0.25 * 1 + 0.25 * 2 / 3)


def test_nothing_to_find_has_no_figure_and_nothing_found_is_zero() -> None:
    """A class that a bag does not hold must not drag a mean down, a blind detector must."""
    assert math.isnan(average_precision(np.array([0.5]), np.array([False]), 0))
    assert average_precision(np.empty(0), np.empty(0, bool), 3) == 0


def test_a_thing_is_found_once() -> None:
    """A detector that tells everything twice is half wrong."""
    count = counted(found([[0, 0, 20, 20], [1, 0, 21, 20], [40, 0, 60, 20]], [0.9, 0.8, 0.7]))
    figures = count.figures(0, threshold=0.75)
    assert (figures.truths, figures.recall, figures.precision) == (2, 0.5, 0.5)
    assert figures.average_precision == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_a_box_beside_the_thing_or_of_another_class_is_an_error() -> None:
    """Half an overlap is the line, and a person is no vehicle."""
    assert counted(found([[0, 0, 20, 9]], [0.9])).figures(0, 0.5).recall == 0
    assert counted(found([[0, 0, 20, 11]], [0.9])).figures(0, 0.5).recall == 0.5
    wrong = counted(found([[0, 0, 20, 20]], [0.9], [1]))
    assert wrong.figures(0, 0.5).recall == 0
    assert wrong.figures(1, 0.5).precision == 0


def test_what_is_too_small_to_count_may_be_found_or_missed() -> None:
    """Twelve pixels of a person behind a tree are neither a success nor a failure."""
    true = np.array([[0, 0, 20, 20], [40, 0, 44, 4]], np.float32)
    for told in (found([[0, 0, 20, 20]], [0.9]), found([[0, 0, 20, 20], [40, 0, 44, 4]], [0.9, 0.95])):
        figures = counted(told, true).figures(0, 0.5)
        assert (figures.truths, figures.recall, figures.precision, figures.average_precision) == (1, 1, 1, 1)
    larger = counted(found([[0, 0, 20, 20]], [0.9]), THINGS, smallest=30).figures(0, 0.5)
    assert larger.truths == 0
    assert math.isnan(larger.precision)
