"""The counters of the vehicle scenarios: a counter that is always 0 would make its scenario pass every time."""

from pathlib import Path

import pytest

from bench.faults.scenarios.vehicle import negatives, open_frames, untrue_offsets
from shared.runlog.latency_log import LatencyRow, LogWriter, Outcome


def test_a_negative_duration_in_any_column_is_counted() -> None:
    """Only the clock offset may be negative."""
    row = {"total_ms": "-0.100000", "crossing_ms": "-3.000000", "sent_ms": "2.0", "read_ms": "", "t_due_ns": "-1"}
    assert negatives(row | {"clock_offset_ms": "-7250.000000"}) == 2


@pytest.mark.parametrize(("offset_ms", "untrue"), [(1000.0, 0), (1003.9, 0), (1004.1, 1), (995.9, 1)])
def test_an_offset_is_checked_against_its_own_error_bound(offset_ms: float, untrue: int) -> None:
    """The tolerance is its error bound plus the time between two readings of the wall clock."""
    row = {"clock_offset_ms": str(offset_ms), "clock_error_ms": "3.0"}
    worst_ms, counted = untrue_offsets([row], truth_ms=1000.0)
    assert worst_ms == pytest.approx(abs(offset_ms - 1000))
    assert counted == untrue


def test_a_missing_offset_counts_as_untrue() -> None:
    """A vehicle without an estimate of the worker's clock must not pass as one with a correct estimate."""
    assert untrue_offsets([{"clock_offset_ms": "", "clock_error_ms": ""}], truth_ms=1000.0)[1] == 1


def test_a_sent_frame_without_a_row_is_open(tmp_path: Path) -> None:
    """A frame that was sent twice counts once."""
    rows = [LatencyRow("car", "left", "s1", sequence, Outcome.ABORTED, "edge_died") for sequence in range(3)]
    with LogWriter(tmp_path) as log:
        for row in [*rows, rows[2]]:
            log.open(row)
        log.close(rows[0])
    assert open_frames(tmp_path) == 2
