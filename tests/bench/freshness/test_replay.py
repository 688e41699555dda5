"""Replays of a recorded drive through the presenters of the vehicle."""

from dataclasses import replace

import numpy as np

from bench.freshness.recording import SyntheticDrive
from bench.freshness.replay import MadeOutput, at_the_tick, outputs, presented, score, undelayed, usable_sources
from edge.presenting.presenter import HoldPresenter, PresenterParts
from ops.link.arrivals import ResultArrivals, after
from shared.runlog.presented_log import OutputOrigin


def hold(drive: SyntheticDrive) -> HoldPresenter:
    """A new presenter, as a run builds one."""
    return HoldPresenter(PresenterParts(drive.card))


def test_holding_without_a_delay_is_the_ceiling(drive: SyntheticDrive) -> None:
    """The streaming accuracy of fresh results is the accuracy of the model."""
    sources = usable_sources(drive, after(0, len(drive.images), drive.period_ns))
    held = score(drive, presented(drive, hold(drive), sources))
    assert held.accuracy() == score(drive, undelayed(drive.remote, OutputOrigin.REMOTE)).accuracy()
    assert {tick.age_ns for tick in held.ticks} == {0}


def test_a_held_result_is_scored_against_the_labels_of_now(drive: SyntheticDrive) -> None:
    """Three frames later, the mask of a frame meets the labels of the present, and has the age of three frames."""
    sources = usable_sources(drive, after(100, len(drive.images), drive.period_ns))
    scores = score(drive, presented(drive, hold(drive), sources), range(6, len(drive.images)))
    for tick, scored in enumerate(scores.ticks, 6):
        held_mask = drive.remote[tick - 4]
        assert scored.age_ns == 4 * drive.period_ns
        assert scored.tallies[1].tolist() == np.bincount(drive.truths[tick].ravel(), minlength=12).tolist()
        assert scored.tallies[2].tolist() == np.bincount(held_mask.ravel(), minlength=12).tolist()


def test_at_the_tick_an_output_that_takes_time_counts_one_tick_late(drive: SyntheticDrive) -> None:
    """A held result counts as soon as it is there; both stay where nothing newer is made."""
    made = [MadeOutput(), *undelayed(drive.remote[1:3], OutputOrigin.WARPED), MadeOutput()]
    made += undelayed(drive.remote[4:], OutputOrigin.WARPED)
    period = drive.period_ns
    late, at_once = (at_the_tick(drive, made, takes_time=takes_time) for takes_time in (True, False))
    assert [each.age_ns for each in late[:7]] == [None, None, period, period, 2 * period, period, period]
    assert [each.age_ns for each in at_once[:7]] == [None, 0, 0, period, 0, 0, 0]
    assert late[4].mask is made[2].mask is at_once[3].mask


def test_ticks_before_the_first_result_are_missing(drive: SyntheticDrive) -> None:
    """They lower the second value only."""
    sources = usable_sources(drive, after(200, len(drive.images), drive.period_ns))
    scores = score(drive, presented(drive, hold(drive), sources))
    assert scores.origins() == {"remote": 17, "none": 7}
    assert scores.accuracy(with_missing=True) < scores.accuracy()


def test_a_result_that_is_too_old_is_not_used(drive: SyntheticDrive) -> None:
    """The limit is that of the vehicle: two seconds, here ten frames."""
    slow = replace(drive, due_ns=range(0, 24 * 200_000_000, 200_000_000))
    only_first = ResultArrivals((0, *[None] * 23))
    assert usable_sources(slow, only_first) == [0] * 11 + [None] * 13


def test_ticks_come_in_order_with_the_newest_result(drive: SyntheticDrive) -> None:
    """A presenter of a replay cannot see the future."""
    sources = usable_sources(drive, after(70, len(drive.images), drive.period_ns))
    for tick, output in enumerate(outputs(drive, hold(drive), sources)):
        if tick < 3:
            assert output.result is None
        else:
            assert np.array_equal(output.result, drive.remote[tick - 3])
