"""The accounts of a fault bench: each way in which a promise can break must show, or every scenario would be green."""

from pathlib import Path

import pytest

from bench.harness.frame_accounting import FrameAccounts
from shared.runlog.latency_log import CSV_NAME, LogError
from shared.runlog.run_manifest import read_manifest, write_manifest


def _accounts(folder: Path, checked: int = 0, wrong: int = 0) -> FrameAccounts:
    accounts = FrameAccounts()
    accounts.add(folder, lambda _: (checked, wrong))
    return accounts


def test_a_sound_run_breaks_no_promise(consistent_run: Path) -> None:
    """Its frames are told as the sum that the promise is."""
    accounts = _accounts(consistent_run, checked=40)
    assert accounts.failures == []
    assert accounts.read == 40
    assert accounts.equation.startswith("40 read = ")
    assert accounts.outcomes["answered"] + accounts.outcomes["dropped"] == 40
    assert set(accounts.reasons) == {"dropped(window)"}


def test_what_was_not_sent_when_a_vehicle_was_asked_to_end_is_no_fault() -> None:
    """A scenario that ends a vehicle would fail by the moment at which it does."""
    accounts = FrameAccounts(read=10)
    accounts.outcomes.update(answered=7, dropped=2, lost=1)
    accounts.reasons.update({"dropped(stopped)": 1, "dropped(window)": 1, "lost(no answer)": 1})
    assert accounts.unanswered == 2


def test_a_frame_without_a_row_is_unaccounted_for(damaged_run: Path) -> None:
    """The one thing that must never be."""
    log = damaged_run / CSV_NAME
    log.write_text("\n".join(log.read_text(encoding="utf-8").splitlines()[:-1]) + "\n", encoding="utf-8")
    accounts = _accounts(damaged_run)
    assert accounts.unaccounted == 1
    assert any("1 frames unaccounted for: 40 read = " in failure for failure in accounts.failures)


def test_a_frame_with_two_answers_is_told(damaged_run: Path) -> None:
    """Two masks for one frame: a vehicle would act twice."""
    log = damaged_run / CSV_NAME
    lines = log.read_text(encoding="utf-8").splitlines()
    lines.append(next(line for line in lines if ",answered," in line))
    log.write_text("\n".join([*lines, ""]), encoding="utf-8")
    accounts = _accounts(damaged_run)
    assert accounts.accepted_twice == 1
    assert "1 frames have two accepted masks" in accounts.failures


def test_a_wrong_label_is_told(consistent_run: Path) -> None:
    """A mask that is another frame's is worse than none."""
    assert "1 of 30 masks have a wrong label" in _accounts(consistent_run, checked=30, wrong=1).failures


def test_a_run_without_an_end_is_told(damaged_run: Path) -> None:
    """A vehicle that crashed has written no tally; its rows prove nothing."""
    manifest = read_manifest(damaged_run)
    del manifest["frames_read"]
    write_manifest(damaged_run, manifest)
    assert _accounts(damaged_run).failures


def test_several_runs_are_added_up(consistent_run: Path) -> None:
    """A scenario has several vehicles, and one sum."""
    accounts = _accounts(consistent_run)
    accounts.add(consistent_run)
    assert accounts.read == 80
    assert accounts.outcomes.total() == 80


def test_a_run_that_is_not_there_is_no_balanced_run(tmp_path: Path) -> None:
    """A vehicle that never began would otherwise count as one without a fault."""
    with pytest.raises(LogError):
        _accounts(tmp_path / "nothing")
