"""Streaming accuracy of detections: boxes against the true boxes of their own tick."""

import math

import numpy as np
import pytest

from modelling.evaluation.metrics import BoxMatcher
from modelling.evaluation.streaming import StreamingBoxes
from shared.messages.results import Detections

NAMES = ("vehicle", "person")


def frame(seed: int) -> tuple[tuple[np.ndarray, np.ndarray], Detections]:
    """True boxes, and found ones of which some are right."""
    generator = np.random.default_rng(seed)
    corners = generator.uniform(0, 200, (6, 2)).astype(np.float32)
    boxes = np.concatenate((corners, corners + 30), axis=1)
    class_ids = generator.integers(0, 2, 6)
    moved = boxes + generator.choice([0, 2, 60], (6, 1)).astype(np.float32)
    found = Detections(moved, class_ids.astype(np.uint16), generator.random(6).astype(np.float32))
    return (boxes, class_ids.astype(np.intp)), found


def test_without_delay_it_is_the_average_precision_of_the_evaluation() -> None:
    """Ticks are matched one by one; all of them together rank by score as in `skylane model bench`."""
    scores, matcher = StreamingBoxes(NAMES), BoxMatcher(len(NAMES), 12.0)
    for seed in range(8):
        truth, found = frame(seed)
        scores.add(truth, found, origin="remote", age_ns=0)
        matcher.add(found, *truth)
    expected = [matcher.metrics(class_id, 0.5).average_precision for class_id in range(2)]
    assert 0.2 < min(expected) < max(expected) < 1.0
    assert scores.by_class() == pytest.approx(dict(zip(NAMES, expected, strict=True)))
    assert scores.accuracy() == pytest.approx(np.mean(expected))


def test_a_replicate_counts_each_tick_as_often_as_it_was_drawn() -> None:
    """A tick drawn twice is a tick that occurs twice."""
    scores, doubled = StreamingBoxes(NAMES), StreamingBoxes(NAMES)
    for seed in range(5):
        truth, found = frame(seed)
        tick = scores.add(truth, found, origin="remote", age_ns=0)
        doubled.ticks += [tick] * (2 if seed == 1 else 0 if seed == 3 else 1)
    (replicate,) = scores.replicates(np.array([[1.0, 2.0, 1.0, 0.0, 1.0]]))
    assert replicate == pytest.approx(doubled.accuracy())


def test_a_missing_output_misses_all_true_boxes_in_the_second_value_only() -> None:
    """As for masks."""
    scores = StreamingBoxes(NAMES)
    (boxes, class_ids), _ = frame(1)
    right = Detections(boxes, class_ids.astype(np.uint16), np.full(6, 0.9, np.float32))
    scores.add((boxes, class_ids), right, origin="remote", age_ns=0)
    scores.add((boxes, class_ids), None, origin="none")
    assert scores.accuracy() == 1.0
    assert scores.accuracy(with_missing=True) == 0.5
    assert scores.origins() == {"remote": 1, "none": 1}
    assert [tick.tallies.recall for tick in scores.ticks] == [1.0, 0.0]


def test_no_ticks_have_no_accuracy() -> None:
    """An empty run has no average precision rather than 0."""
    assert math.isnan(StreamingBoxes(NAMES).accuracy())
    assert StreamingBoxes(NAMES).by_class() == {}
