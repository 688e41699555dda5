"""Frame accounting: every violation of the guarantee must be reported, or every fault scenario would pass."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.logs.frame_accounting import FrameAccounts, longest_gap_ms, recovery_ms
from shared.runlog.latency_log import LogError
from tests.analysis.conftest import consistent_run, damaged_run, gated_run
from tests.support import run_damage

__all__ = ["consistent_run", "damaged_run", "gated_run"]


def _accounts(folder: Path, checked: int = 0, wrong: int = 0) -> FrameAccounts:
    accounts = FrameAccounts()
    accounts.add(folder, lambda _: (checked, wrong))
    return accounts


def test_a_consistent_run_has_no_failures(consistent_run: Path) -> None:
    """Its outcomes sum to the frames read."""
    accounts = _accounts(consistent_run, checked=40)
    assert accounts.failures == []
    assert accounts.read == 40
    assert accounts.equation.startswith("40 read = ")
    assert accounts.outcomes["answered"] + accounts.outcomes["dropped"] == 40
    assert set(accounts.reasons) == {"dropped(window)"}


def test_results_of_every_origin_are_in_the_equation(gated_run: Path) -> None:
    """A reused or local frame needs no reason."""
    accounts = _accounts(gated_run)
    assert accounts.failures == []
    assert re.fullmatch(r"200 read = \d+ answered \+ \d+ reused \+ \d+ answered_locally \+ .*", accounts.equation)
    assert set(accounts.reasons) <= {"dropped(window)", "lost(no answer)"}
    assert accounts.unanswered == accounts.reasons.total()


def test_frames_dropped_by_the_end_of_a_vehicle_do_not_count_as_unanswered() -> None:
    """Otherwise a scenario that stops a vehicle would fail, depending on the time of the stop."""
    accounts = FrameAccounts(read=10)
    accounts.outcomes.update(answered=7, dropped=2, lost=1)
    accounts.reasons.update({"dropped(stopped)": 1, "dropped(window)": 1, "lost(no answer)": 1})
    assert accounts.unanswered == 2


def _without_last_row(lines: list[str]) -> list[str]:
    return lines[:-1]


def _with_two_masks_for_a_frame(lines: list[str]) -> list[str]:
    return [*lines, next(line for line in lines if ",answered," in line)]


@pytest.mark.parametrize(
    ("damage", "failure"),
    [
        (_without_last_row, "1 frames unaccounted for: 40 read = "),
        (_with_two_masks_for_a_frame, "1 frames have two accepted masks"),
    ],
)
def test_missing_and_duplicate_rows_are_reported(
    damaged_run: Path, damage: Callable[[list[str]], list[str]], failure: str
) -> None:
    """No frame may vanish, and a vehicle must not act twice on the same frame."""
    run_damage.write(damaged_run, damage(run_damage.lines(damaged_run)))
    assert any(each.startswith(failure) for each in _accounts(damaged_run).failures)


def test_a_wrong_label_is_reported(consistent_run: Path) -> None:
    """The mask of another frame is worse than a missing mask."""
    assert "1 of 30 masks have a wrong label" in _accounts(consistent_run, checked=30, wrong=1).failures


def test_a_run_without_a_frame_count_fails(damaged_run: Path) -> None:
    """A vehicle that crashed has not written how many frames it read."""
    run_damage.change_manifest(damaged_run, frames_read=None)
    assert _accounts(damaged_run).failures


def test_several_runs_are_added_up(consistent_run: Path) -> None:
    """A scenario has several vehicles."""
    accounts = _accounts(consistent_run)
    accounts.add(consistent_run)
    assert accounts.read == 80
    assert accounts.outcomes.total() == 80


def test_a_missing_run_raises(tmp_path: Path) -> None:
    """Otherwise a vehicle that never started would count as one without failures."""
    with pytest.raises(LogError):
        _accounts(tmp_path / "nothing")


_MS = 10**6


def _rows(*rows: tuple[str, float, float, float]) -> list[dict[str, str]]:
    """Rows of a log: outcome, last attempt to send, time since the first attempt, arrival of the mask, all in ms."""
    return [
        {
            "outcome": outcome,
            "t_sent_ns": str(round(sent_ms * _MS)),
            "retry_wait_ms": f"{wait_ms:.6f}",
            "t_mask_decoded_ns": str(round(arrived_ms * _MS)),
        }
        for outcome, sent_ms, wait_ms, arrived_ms in rows
    ]


def test_recovery_counts_from_the_later_of_fault_and_first_attempt() -> None:
    """A frame held by the worker has waited since the fault; a frame sent to a dead worker, since it was sent."""
    held = ("answered", 1300.0, 400.0, 1350.0)  # First sent at 900, before the fault at 1000.
    sent_later = ("answered", 1500.0, 300.0, 1580.0)  # First sent at 1200.
    assert recovery_ms(_rows(held, sent_later), [1000 * _MS]) == pytest.approx([350.0, 380.0])


def test_recovery_counts_from_the_last_fault_before_the_mask() -> None:
    """Three workers are killed one after the other: the frames of the second have not waited since the first fault."""
    row = ("answered", 5300.0, 900.0, 5400.0)
    assert recovery_ms(_rows(row), [1000 * _MS, 5000 * _MS, 9000 * _MS]) == pytest.approx([400.0])


def test_recovery_ignores_frames_without_a_retry_or_a_mask() -> None:
    """Frames that were answered at once would lower the 95th percentile."""
    at_once = ("answered", 1300.0, 0.0, 1350.0)
    lost = ("lost", 1300.0, 400.0, 0.0)
    assert recovery_ms(_rows(at_once, lost), [1000 * _MS]) == []


def test_the_longest_gap_ignores_frames_without_a_mask() -> None:
    """Masks count in the order of their arrival."""
    rows = _rows(("answered", 0, 0, 900.0), ("answered", 0, 0, 100.0), ("lost", 0, 0, 500.0))
    assert longest_gap_ms(rows) == pytest.approx(800.0)
    assert longest_gap_ms(rows[:1]) == 0
