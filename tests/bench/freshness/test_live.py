"""A live run sees the recorded frames and results, and is replayed with the results that it had."""

from pathlib import Path

import pytest

from bench.freshness.live import LivePlan, measure_live, play_live
from bench.freshness.recording import SyntheticDrive
from shared.network.link_spec import LinkSpec

pytestmark = pytest.mark.mosquitto
_NEAR = LinkSpec(delay_ms=10)


def test_a_live_run_of_held_results_equals_its_replay(drive: SyntheticDrive, tmp_path: Path) -> None:
    """Holding needs no time and no flow, so each difference would be another frame, result or tick."""
    slow = drive.only_every(3)
    scores = play_live(slow, LivePlan("hold", link=_NEAR, inference_ms=10), tmp_path)
    assert scores.live.ticks
    assert len(scores.live.ticks) + scores.without_output + scores.not_written == len(slow.images)
    for live, replayed in zip(scores.live.ticks, scores.replayed.ticks, strict=True):
        assert (live.tallies == replayed.tallies).all()
        assert (live.origin, live.drive) == (replayed.origin, replayed.drive)


def test_the_figures_of_a_live_run_count_every_tick(drive: SyntheticDrive, tmp_path: Path) -> None:
    """A tick that is not scored is counted with its reason."""
    found = measure_live([drive], LivePlan("hold", link=_NEAR, inference_ms=10), tmp_path)
    assert found["ticks"] + found["ticks_without_output"] + found["outputs_not_written"] == len(drive.images)
    assert found["live"] == pytest.approx(found["replayed"]["value"])
    assert set(found["origins"]) == {"remote"}
    assert found["age_ms"]["median"] > 0
