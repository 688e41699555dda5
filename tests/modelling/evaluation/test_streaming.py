"""Streaming accuracy: outputs against the labels or boxes of their own tick."""

import math
from typing import Any

import numpy as np
import pytest

from modelling.evaluation.metrics import BoxMatcher, Confusion
from modelling.evaluation.streaming import ScoredTicks, StreamingBoxes, StreamingScores, newest_ready
from shared.messages.results import Detections

NAMES = ("none", "road", "car")
TRUTH = np.array([[1, 1, 2, 2], [1, 1, 0, 0]], np.uint8)
BOXES = (np.array([[0, 0, 30, 30], [50, 0, 80, 30]], np.float32), np.array([1, 2], np.intp))
FOUND = Detections(BOXES[0], np.array([1, 2], np.uint16), np.full(2, 0.9, np.float32))
MS = 1_000_000
BOTH_TASKS = pytest.mark.parametrize(
    ("scores", "truth", "output"),
    [(StreamingScores(NAMES), TRUTH, TRUTH), (StreamingBoxes(NAMES), BOXES, FOUND)],
    ids=["masks", "boxes"],
)


def random_boxes(seed: int) -> tuple[tuple[np.ndarray, np.ndarray], Detections]:
    """True boxes, and found ones of which some are right."""
    generator = np.random.default_rng(seed)
    corners = generator.uniform(0, 200, (6, 2)).astype(np.float32)
    boxes = np.concatenate((corners, corners + 30), axis=1)
    class_ids = generator.integers(0, 2, 6)
    moved = boxes + generator.choice([0, 2, 60], (6, 1)).astype(np.float32)
    found = Detections(moved, class_ids.astype(np.uint16), generator.random(6).astype(np.float32))
    return (boxes, class_ids.astype(np.intp)), found


def test_without_delay_the_mean_iou_is_that_of_the_evaluation() -> None:
    """It is that of the summed confusion."""
    scores, confusion = StreamingScores(NAMES), Confusion.empty(3)
    for seed in range(4):
        truth, mask = np.random.default_rng(seed).integers(0, 3, (2, 40, 60), dtype=np.uint8)
        scores.add(truth, mask, origin="remote", age_ns=0)
        confusion = confusion.with_masks(truth, mask)
    assert scores.accuracy() == pytest.approx(confusion.mean_iou(NAMES))
    ious = dict(zip(NAMES[1:], confusion.intersection_over_union()[1:], strict=True))
    assert scores.by_class() == pytest.approx(ious)


def test_without_delay_the_average_precision_is_that_of_the_evaluation() -> None:
    """Ticks are matched one by one; all of them together rank by score as in `skylane model bench`."""
    scores, matcher = StreamingBoxes(NAMES[:2]), BoxMatcher(2, 12.0)
    for seed in range(8):
        truth, found = random_boxes(seed)
        scores.add(truth, found, origin="remote", age_ns=0)
        matcher.add(found, *truth)
    expected = [matcher.metrics(class_id, 0.5).average_precision for class_id in range(2)]
    assert 0.2 < min(expected) < max(expected) < 1.0
    assert scores.by_class() == pytest.approx(dict(zip(NAMES, expected, strict=False)))
    assert scores.accuracy() == pytest.approx(np.mean(expected))


def test_a_replicate_counts_each_tick_as_often_as_it_was_drawn() -> None:
    """A tick drawn twice is a tick that occurs twice."""
    scores = StreamingBoxes(NAMES)
    ticks = [scores.add(*random_boxes(seed), origin="remote", age_ns=0) for seed in range(5)]
    (replicate,) = scores.replicates(np.array([[1.0, 2.0, 1.0, 0.0, 1.0]]))
    assert replicate == pytest.approx(scores.of([*ticks[:3], ticks[1], ticks[4]]).accuracy())


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({}, [None, None, None, None]),
        ({0: 5, 1: 105, 2: 205, 3: 305}, [None, 0, 1, 2]),  # Each is ready 5 ms after its tick: it counts at the next.
        ({0: 0, 1: 100, 2: 200, 3: 300}, [0, 1, 2, 3]),  # Ready at the very time at which the tick is due.
        ({0: 101, 1: 301, 2: 302}, [None, None, 0, 0]),  # Late by more than a tick: the older one stays.
        ({0: 250, 1: 150, 2: 210}, [None, None, 1, 2]),  # The output for tick 0 is ready last and never counts.
        ({1: 120}, [None, None, 1, 1]),  # None is made for ticks 2 and 3: that withdraws nothing.
        ({3: 0}, [3, 3, 3, 3]),
    ],
)
def test_the_newest_output_that_was_ready_counts_at_a_tick(made: dict[int, int], expected: list[int | None]) -> None:
    """Outputs by the tick they were made for, with the time at which they were ready; ticks are due every 100 ms."""
    assert newest_ready(list(made), list(made.values()), [0, 100, 200, 300]) == expected
    assert newest_ready([*made][::-1], [*made.values()][::-1], [0, 100, 200, 300]) == expected
    assert newest_ready(list(made), list(made.values()), [None, 300]) == [None, expected[3]]


@BOTH_TASKS
def test_a_missing_output_counts_in_the_second_value_only(scores: ScoredTicks[Any], truth: Any, output: Any) -> None:
    """All that is true in its tick is missed, but nothing is predicted in excess; no ticks at all have no accuracy."""
    assert math.isnan(scores.accuracy())
    assert scores.by_class() == {}
    found = scores.of(())
    found.add(truth, output, origin="remote", age_ns=0)
    found.add(truth, None, origin="none")
    assert found.accuracy() == 1.0
    assert found.accuracy(with_missing=True) == 0.5
    assert found.origins() == {"remote": 1, "none": 1}


def test_pixels_outside_of_the_model_are_not_scored() -> None:
    """Neither a class that the model does not know nor a pixel outside of its crop makes its mask wrong."""
    truth, mask = TRUTH.copy(), TRUTH.copy()
    truth[0, 0], mask[0, 2] = 9, 255
    scores = StreamingScores(NAMES)
    scores.add(truth, mask, origin="remote", age_ns=0)
    assert scores.accuracy() == 1.0
    assert scores.ticks[0].tallies[1].tolist() == [2, 3, 1]


def test_ticks_are_grouped_by_age_and_drive() -> None:
    """Ages fall into bins that are named by their lower end; a tick without an output is in none of them."""
    scores = StreamingScores(NAMES)
    for age_ms, drive in ((0, "a"), (49.9, "a"), (50, "b"), (5000, "b")):
        scores.add(TRUTH, TRUTH, origin="remote", age_ns=round(age_ms * MS), drive=drive)
    scores.add(TRUTH, None, origin="none", drive="c")
    assert {edge: len(each.ticks) for edge, each in scores.by_age().items()} == {0: 2, 50: 1, 1000: 1}
    assert {drive: len(each.ticks) for drive, each in scores.by_drive().items()} == {"a": 2, "b": 2, "c": 1}
    assert len(scores.where(lambda tick: tick.is_missing).ticks) == 1
