import pytest
from bench.harness.recovery_time import longest_gap_ms, recovery_ms

_MS = 10**6


def _rows(*rows: tuple[str, float, float, float]) -> list[dict[str, str]]:
    """A log's rows: outcome, when the frame was last sent, how long after the first time, answered."""
    return [
        {
            "outcome": outcome,
            "t_sent_ns": str(round(sent_ms * _MS)),
            "retry_wait_ms": f"{wait_ms:.6f}",
            "t_mask_decoded_ns": str(round(came_ms * _MS)),
        }
        for outcome, sent_ms, wait_ms, came_ms in rows
    ]


def test_recovery_counts_from_the_fault_or_from_the_sending() -> None:
    """A frame sent to a worker that is dead already waited since it was sent; one that it held, since it died."""
    held = ("answered", 1300.0, 400.0, 1350.0)  # First sent at 900, before the fault at 1000.
    sent_later = ("answered", 1500.0, 300.0, 1580.0)  # First sent at 1200.
    assert recovery_ms(_rows(held, sent_later), [1000 * _MS]) == pytest.approx([350.0, 380.0])


def test_recovery_counts_from_the_last_of_several_faults() -> None:
    """Three workers are killed one after the other: the third one's frames have not waited since the first kill."""
    row = ("answered", 5300.0, 900.0, 5400.0)
    assert recovery_ms(_rows(row), [1000 * _MS, 5000 * _MS, 9000 * _MS]) == pytest.approx([400.0])


def test_only_what_was_sent_again_and_answered_has_recovered() -> None:
    """Frames that were answered at once would make the 95th percentile of the recovery look good."""
    at_once = ("answered", 1300.0, 0.0, 1350.0)
    lost = ("lost", 1300.0, 400.0, 0.0)
    assert recovery_ms(_rows(at_once, lost), [1000 * _MS]) == []


def test_the_longest_gap_is_between_answers_alone() -> None:
    """In the order in which they came; what was lost ends no silence."""
    rows = _rows(("answered", 0, 0, 900.0), ("answered", 0, 0, 100.0), ("lost", 0, 0, 500.0))
    assert longest_gap_ms(rows) == pytest.approx(800.0)
    assert longest_gap_ms(rows[:1]) == 0
