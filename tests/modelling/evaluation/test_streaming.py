"""Streaming accuracy: outputs against the labels of their own tick."""

import math

import numpy as np
import pytest

from modelling.evaluation.metrics import Confusion
from modelling.evaluation.streaming import Mask, StreamingScores, newest_ready

NAMES = ("none", "road", "car")
TRUTH = np.array([[1, 1, 2, 2], [1, 1, 0, 0]], np.uint8)
MS = 1_000_000


def random_mask(seed: int) -> Mask:
    """A mask of all classes."""
    return np.random.default_rng(seed).integers(0, 3, (40, 60), dtype=np.uint8)


def test_the_mean_iou_is_that_of_the_summed_confusion() -> None:
    """Streaming accuracy of outputs without a delay is the accuracy of the model's evaluation."""
    scores, confusion = StreamingScores(NAMES), Confusion.empty(3)
    for seed in range(4):
        truth, mask = random_mask(seed), random_mask(seed + 100)
        scores.add(truth, mask, origin="remote", age_ns=0)
        confusion = confusion.with_masks(truth, mask)
    assert scores.accuracy() == pytest.approx(confusion.mean_iou(NAMES))
    assert scores.by_class() == pytest.approx(
        dict(zip(NAMES[1:], confusion.intersection_over_union()[1:], strict=True))
    )


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({}, [None, None, None, None]),
        (
            {0: 5, 1: 105, 2: 205, 3: 305},
            [None, 0, 1, 2],
        ),  # Each is ready 5 ms after its tick: it counts at the next one.
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


def test_a_missing_output_counts_in_the_second_value_only() -> None:
    """A tick without an output has all true pixels wrong, but no class is predicted in excess."""
    scores = StreamingScores(NAMES)
    scores.add(TRUTH, TRUTH, origin="remote", age_ns=0)
    scores.add(TRUTH, None, origin="none")
    assert scores.accuracy() == 1.0
    assert scores.accuracy(with_missing=True) == 0.5
    assert scores.origins() == {"remote": 1, "none": 1}


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


def test_no_ticks_have_no_accuracy() -> None:
    """An empty run has no mean IoU rather than 0."""
    assert math.isnan(StreamingScores(NAMES).accuracy())
    assert StreamingScores(NAMES).by_class() == {}
