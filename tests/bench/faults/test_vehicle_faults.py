"""What the scenarios of a vehicle count: a scenario whose figure is always 0 would hold whatever happened."""

from pathlib import Path

import pytest

from bench.faults.scenarios.vehicle import negatives, open_frames, untrue_offsets
from shared.runlog.latency_log import LatencyRow, LogWriter, Outcome


def test_a_negative_duration_is_seen_whichever_it_is() -> None:
    """The clock's offset alone may be negative."""
    row = {"total_ms": "-0.100000", "crossing_ms": "-3.000000", "sent_ms": "2.0", "read_ms": "", "t_due_ns": "-1"}
    assert negatives(row | {"clock_offset_ms": "-7250.000000"}) == 2


@pytest.mark.parametrize(("offset_ms", "untrue"), [(1000.0, 0), (1003.9, 0), (1004.1, 1), (995.9, 1)])
def test_an_offset_is_held_to_its_own_error(offset_ms: float, untrue: int) -> None:
    """It may be off by what it says, and by the time between two readings of the wall clock."""
    row = {"clock_offset_ms": str(offset_ms), "clock_error_ms": "3.0"}
    worst_ms, counted = untrue_offsets([row], truth_ms=1000.0)
    assert worst_ms == pytest.approx(abs(offset_ms - 1000))
    assert counted == untrue


def test_an_offset_that_is_not_told_is_not_right() -> None:
    """A vehicle that gives the worker's clock up must not pass for one that knows it."""
    assert untrue_offsets([{"clock_offset_ms": "", "clock_error_ms": ""}], truth_ms=1000.0)[1] == 1


def test_a_frame_that_was_sent_and_has_no_row_is_open(tmp_path: Path) -> None:
    """Sent twice it is still one."""
    rows = [LatencyRow("car", "left", "s1", sequence, Outcome.ABORTED, "edge_died") for sequence in range(3)]
    with LogWriter(tmp_path) as log:
        for row in [*rows, rows[2]]:
            log.open(row)
        log.close(rows[0])
    assert open_frames(tmp_path) == 2
