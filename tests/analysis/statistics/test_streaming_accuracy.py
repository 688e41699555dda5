"""Intervals of streaming accuracy over drives and over blocks of ticks."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from analysis.statistics.streaming_accuracy import accuracy_interval, margin_interval
from modelling.evaluation.streaming import Mask, StreamingScores

NAMES = ("none", "road", "car")


def outputs(drive: int, wrong: float, ticks: int = 6) -> Iterator[tuple[Mask, Mask]]:
    """Yields truths and masks of which about a share of `wrong` pixels is wrong."""
    generator = np.random.default_rng(drive)
    for _ in range(ticks):
        truth = generator.integers(1, 3, (20, 30), dtype=np.uint8)
        yield truth, np.where(generator.random(truth.shape) < wrong, 3 - truth, truth).astype(np.uint8)


def scores(wrong_by_drive: dict[int, float], ticks: int = 6) -> StreamingScores:
    """Scores of several drives."""
    found = StreamingScores(NAMES)
    for drive, wrong in wrong_by_drive.items():
        for truth, mask in outputs(drive, wrong, ticks):
            found.add(truth, mask, origin="remote", age_ns=0, drive=str(drive))
    return found


def test_the_interval_holds_the_value_and_widens_with_the_spread_of_the_drives() -> None:
    """Drives that differ leave the mean less certain than drives that do not."""
    alike = accuracy_interval(scores(dict.fromkeys(range(8), 0.2)))
    different = accuracy_interval(scores({drive: 0.04 * drive for drive in range(8)}))
    for estimate in (alike, different):
        assert estimate.low < estimate.value < estimate.high
    assert different.high - different.low > 3 * (alike.high - alike.low)


def test_a_paired_margin_is_more_certain_than_its_parts() -> None:
    """Both candidates see the same drives: a hard drive is hard for both."""
    own = scores({drive: 0.02 + 0.04 * drive for drive in range(8)})
    baseline = scores({drive: 0.08 + 0.04 * drive for drive in range(8)})
    margin, accuracy = margin_interval(own, baseline), accuracy_interval(own)
    assert margin.value == pytest.approx(own.accuracy() - baseline.accuracy())
    assert 0 < margin.low < margin.value < margin.high
    assert margin.high - margin.low < accuracy.high - accuracy.low


def test_one_drive_is_resampled_in_blocks_of_ticks() -> None:
    """A single run has an interval too; a run of a few ticks has none."""
    estimate = accuracy_interval(scores({1: 0.2}, ticks=60))
    assert estimate.low < estimate.value < estimate.high
    assert math.isnan(accuracy_interval(scores({1: 0.2}, ticks=1)).low)
    assert math.isnan(accuracy_interval(StreamingScores(NAMES)).value)


def test_a_paired_margin_of_one_drive_has_an_interval_over_its_blocks() -> None:
    """A single recording, such as a real drive, is compared tick by tick: hard ticks are hard for both candidates."""
    own, baseline = StreamingScores(NAMES), StreamingScores(NAMES)
    generator = np.random.default_rng(1)
    for tick in range(120):
        truth = generator.integers(1, 3, (20, 30), dtype=np.uint8)
        chance = generator.random(truth.shape)
        wrong = 0.3 + 0.2 * math.sin(tick / 5)
        for scored, share in ((own, wrong), (baseline, wrong + 0.05)):
            mask = np.where(chance < share, 3 - truth, truth).astype(np.uint8)
            scored.add(truth, mask, origin="remote", age_ns=0)
    margin, accuracy = margin_interval(own, baseline), accuracy_interval(own)
    assert margin.value == pytest.approx(own.accuracy() - baseline.accuracy())
    assert 0 < margin.low < margin.value < margin.high
    assert margin.high - margin.low < accuracy.high - accuracy.low
    assert margin_interval(own, own) == margin_interval(baseline, baseline)


def test_a_margin_of_one_drive_over_other_ticks_is_refused() -> None:
    """Blocks of different ticks would be paired in silence."""
    with pytest.raises(ValueError, match="same ticks"):
        margin_interval(scores({1: 0.1}, ticks=60), scores({1: 0.1}, ticks=59))


def test_equal_seeds_give_equal_intervals() -> None:
    """A repeated analysis reports the same ends."""
    found = scores({drive: 0.04 * drive for drive in range(5)})
    assert accuracy_interval(found, seed=3) == accuracy_interval(found, seed=3)


def test_a_margin_over_other_drives_is_refused() -> None:
    """A difference between drives is no margin of a candidate."""
    with pytest.raises(ValueError, match="same drives"):
        margin_interval(scores({1: 0.1, 2: 0.1}), scores({1: 0.1, 3: 0.1}))
