"""Checks of runs whose disk was full for a time: the losses that the run counted are one sentence, others are not."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared.runlog.latency_log import CSV_NAME, JOURNAL_NAME, append_whole
from shared.runlog.presented_log import PRESENTED_NAME
from tests.analysis.conftest import problems_of
from tests.analysis.logs.test_presented_checks import ticks_of, write_ticks
from tests.full_disk import disk_of
from tests.support import run_damage
from tests.support.synthetic_run import SyntheticRunPlan, write_run

_FULL = range(15, 40)  # The lines that are written while the disk is full.


def _rewrite(folder: Path, name: str) -> int:
    """Writes a file again, to a disk that is full for a time; returns the number of lines that were lost."""
    text = run_damage.lines(folder, name)
    (folder / name).unlink()
    file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    lost = 0
    for number, line in enumerate(text):
        with ExitStack() as stack:
            if number in _FULL:
                stack.enter_context(disk_of(os.fstat(file).st_size + 20))
            try:
                append_whole(file, f"{line}\n".encode())
            except OSError:
                lost += 1
    os.close(file)
    return lost


@pytest.fixture(params=[{"workers": 2, "unanswered": 0.2}, {"reused": 0.5, "local": 0.3}])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a consistent run of 60 frames, with a presenter, that lost rows of all its logs."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=60, **request.param))
    ticks = ticks_of(folder)
    write_ticks(folder, ticks)
    assert problems_of(folder) == []
    _rewrite(folder, JOURNAL_NAME)
    lost = {name: _rewrite(folder, name) for name in (CSV_NAME, PRESENTED_NAME)}
    assert set(lost.values()) == {len(_FULL)}
    presenting = run_damage.manifest(folder)["presenting"] | {"rows_lost": lost[PRESENTED_NAME]}
    run_damage.change_manifest(folder, state="incomplete", rows_lost=lost[CSV_NAME], presenting=presenting)
    return folder


def test_what_a_full_disk_lost_is_one_sentence(run: Path) -> None:
    """Gaps, counts, journal and ticks differ for the same reason; 43 problems hid it."""
    (problem,) = problems_of(run)
    assert problem == (
        "manifest.json: the disk was full: 25 of 60 rows were not written to latency.csv and 25 to presented.csv, as the "
        "run counted; the other rows are complete"
    )


def test_rows_that_are_missing_beyond_the_counted_ones_are_listed(run: Path) -> None:
    """A file that was cut later is not the work of a full disk."""
    run_damage.write(run, run_damage.lines(run)[:-3])
    problems = problems_of(run)
    assert any("the run is 'incomplete': 25 rows were not written" in text for text in problems)
    assert any("have no rows" in text for text in problems)


def test_other_faults_of_the_remaining_rows_are_found(run: Path) -> None:
    """The full disk explains missing rows, not wrong ones."""
    line = run_damage.line_of(run, "answered")
    run_damage.change(run, line, inferred_ms="1.000000")
    assert any("inferred_ms" in text for text in problems_of(run))


def test_an_outcome_that_has_more_rows_than_counted_is_reported(run: Path) -> None:
    """Lost rows lower the counts of the log; they never raise them."""
    counts = run_damage.manifest(run)["outcomes"]
    run_damage.change_manifest(run, outcomes=counts | {"answered": 1})
    assert any("outcomes.answered is 1, but" in text for text in problems_of(run))


def test_ticks_alone_may_be_lost(run: Path) -> None:
    """The disk may be full for the log of outputs only; then it has the sentence."""
    whole = write_run(run.parent / "whole", SyntheticRunPlan(frames=60))
    write_ticks(whole, ticks_of(whole))
    lost = _rewrite(whole, PRESENTED_NAME)
    run_damage.change_manifest(whole, presenting=run_damage.manifest(whole)["presenting"] | {"rows_lost": lost})
    assert problems_of(whole) == [
        "manifest.json: the disk was full: 25 rows of presented.csv were not written, as the run counted"
    ]
