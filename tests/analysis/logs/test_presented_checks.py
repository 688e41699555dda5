"""Checks of the log of outputs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.logs.audit import audit, run_checks
from shared.runlog.latency_log import CSV_NAME
from shared.runlog.presented_log import PRESENTED_NAME, OutputOrigin, PresentedLog, PresentedRow, read_presented
from shared.runlog.repair import repair
from tests.analysis.conftest import problems_of
from tests.support import run_damage
from tests.support.synthetic_run import SyntheticRunPlan, write_run


def ticks_of(folder: Path) -> list[PresentedRow]:
    """Returns the ticks of a vehicle that presents the newest result of the run, and nothing before the first one."""
    rows = sorted(run_damage.rows(folder), key=lambda row: int(row["sequence"]))
    ticks = []
    for row in rows:
        due_ns = int(row["t_due_ns"])
        tick = PresentedRow(
            camera=row["camera"],
            session=row["session"],
            tick=int(row["sequence"]),
            origin=OutputOrigin.NONE,
            reason="no_result",
            frame_index=int(row["frame_index"]),
            frame_stamp_ns=int(row["frame_stamp_ns"]),
            due_ns=due_ns,
            presented_ns=due_ns + 5_000_000,
            processing_ns=100,
        )
        arrived = [
            other
            for other in rows
            if other["outcome"] == "answered"
            and other["camera"] == row["camera"]
            and int(other["t_mask_decoded_ns"]) <= due_ns
        ]
        if arrived:
            newest = max(arrived, key=lambda other: int(other["sequence"]))
            source, age_ns = int(newest["sequence"]), due_ns - int(newest["t_due_ns"])
            tick = replace(
                tick, origin=OutputOrigin.WARPED, reason="", source_sequence=source, age_ns=age_ns, flow="quarter"
            )
        ticks.append(tick)
    return ticks


def write_ticks(folder: Path, ticks: list[PresentedRow]) -> None:
    """Writes the log of outputs, and its counts to the manifest."""
    (folder / PRESENTED_NAME).unlink(missing_ok=True)
    with PresentedLog(folder) as log:
        for tick in ticks:
            log.write(tick)
    run_damage.change_manifest(folder, presenting={"kind": "warp", "rows_lost": 0, **log.counts.record()})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with a presenter."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=60, workers=2, unanswered=0.2))
    write_ticks(folder, ticks_of(folder))
    return folder


def _change(folder: Path, what: OutputOrigin, **changes: Any) -> int:
    """Changes a tick with an origin; returns its line. The manifest's counts are those of the changed log."""
    ticks = list(read_presented(folder))
    indices = [index for index, tick in enumerate(ticks) if tick.origin is what]
    at = indices[len(indices) // 2]
    ticks[at] = replace(ticks[at], **changes)
    write_ticks(folder, ticks)
    return at + 2


def test_a_run_with_a_presenter_is_consistent(run: Path) -> None:
    """Both ticks with and without an output are checked."""
    origins = {tick.origin for tick in read_presented(run)}
    assert origins == {OutputOrigin.WARPED, OutputOrigin.NONE}
    assert audit(run) == ()
    assert (
        sum(check.checked == 60 for check in run_checks(run) if "tick" in check.name or "presented" in check.name) == 5
    )


def test_a_run_without_presenter_has_no_such_checks(tmp_path: Path) -> None:
    """Nothing of it changes."""
    folder = write_run(tmp_path / "run", SyntheticRunPlan(frames=20))
    assert not [check.name for check in run_checks(folder) if "tick" in check.name or "presented" in check.name]


CHANGES: dict[str, tuple[OutputOrigin, Mapping[str, Any], str]] = {
    "a wrong age": (OutputOrigin.WARPED, {"age_ns": 7}, "age_ns: is not due_ns minus that of the frame"),
    "an unknown source": (OutputOrigin.WARPED, {"source_sequence": 10**6}, "source_sequence: is the number of no frame"),
    "no source": (OutputOrigin.WARPED, {"source_sequence": None}, "source_sequence: is empty, but a result is shown"),
    "no age": (OutputOrigin.WARPED, {"age_ns": None}, "age_ns: is empty, but there is an output"),
    "a reason beside an output": (OutputOrigin.WARPED, {"reason": "too_old"}, "reason: is given, but there is an output"),
    "an output before its result": (
        OutputOrigin.WARPED, {"presented_ns": 1}, "source_sequence: is the number of a frame whose result came later",
    ),
    "an output before it was due": (OutputOrigin.NONE, {"presented_ns": 1}, "presented_ns: is before due_ns"),
    "another camera": (OutputOrigin.NONE, {"camera": "/rear"}, "camera: is not camera of its frame in latency.csv"),
    "another due time": (OutputOrigin.NONE, {"due_ns": 5}, "due_ns: is not t_due_ns of its frame in latency.csv"),
    "another frame": (OutputOrigin.NONE, {"frame_index": 999}, "frame_index: is not frame_index of its frame"),
    "no reason": (OutputOrigin.NONE, {"reason": ""}, "reason: is empty, but there is no output"),
    "a source of nothing": (OutputOrigin.NONE, {"source_sequence": 0}, "source_sequence: is given, but there is no output"),
    "no time": (OutputOrigin.NONE, {"presented_ns": None}, "presented_ns: is empty, but the run went on"),
    "an unknown flow": (OutputOrigin.NONE, {"flow": "huge"}, "flow: 'huge' is no value of this column"),
    "a local result of another time": (
        OutputOrigin.WARPED,
        {"origin": OutputOrigin.LOCAL, "source_sequence": None, "age_ns": 5},
        "age_ns: is not 0, but the result is of the tick's own frame",
    ),
    "another session": (OutputOrigin.NONE, {"session": "s9"}, "session: is that of another run: the row is skipped"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_tick_that_does_not_fit_is_named(run: Path, what: str) -> None:
    """The problem names file, row and column."""
    origin, changes, expected = CHANGES[what]
    line = _change(run, origin, **changes)
    assert any(text.startswith(f"{PRESENTED_NAME}, row {line}, column {expected}") for text in problems_of(run))


def test_a_source_must_have_a_result_and_be_earlier(run: Path) -> None:
    """A presenter that looked ahead would be right for the wrong reason."""
    outcomes = {int(row["sequence"]): row["outcome"] for row in run_damage.rows(run)}
    unanswered = min(sequence for sequence, outcome in outcomes.items() if outcome != "answered")
    for source, expected in ((unanswered, "frame without a result"), (59, "later frame")):
        line = _change(run, OutputOrigin.WARPED, source_sequence=source)
        assert f"{PRESENTED_NAME}, row {line}, column source_sequence: is the number of a {expected}" in problems_of(
            run
        )


def test_every_frame_has_one_tick(run: Path) -> None:
    """A tick that is missing, double or of no frame is found."""
    ticks = list(read_presented(run))
    write_ticks(run, [*ticks[1:], ticks[-1], replace(ticks[-1], tick=10**6)])
    assert f"{PRESENTED_NAME}: frame 0 has no tick" in problems_of(run)
    assert f"{PRESENTED_NAME}, row 61, column tick: is that of an earlier row of {PRESENTED_NAME}" in problems_of(run)
    assert f"{PRESENTED_NAME}, row 62, column tick: is no frame of {CSV_NAME}" in problems_of(run)


def test_a_missing_log_is_found(run: Path) -> None:
    """The manifest says that the run had a presenter."""
    (run / PRESENTED_NAME).unlink()
    assert any(PRESENTED_NAME in text and "cannot be read" in text for text in problems_of(run))


def test_lost_rows_and_wrong_counts_are_found(run: Path) -> None:
    """A full disk loses ticks; the manifest says how many."""
    presenting = json.loads((run / "manifest.json").read_text())["presenting"]
    ticks = {**presenting["ticks"], "warped": 0}
    run_damage.change_manifest(run, presenting={**presenting, "ticks": ticks, "rows_lost": 3})
    problems = problems_of(run)
    assert any("presenting.rows_lost is 3" in text for text in problems)
    assert any("presenting.ticks.warped is 0, but presented.csv has " in text for text in problems)


@pytest.mark.parametrize("data", [b"", b"a,b\n1,2\n", b"\x00\xff" * 999, b'camera,"\n'])
def test_another_file_is_a_problem_and_no_failure(run: Path, data: bytes) -> None:
    """The checks of the latency log still run."""
    (run / PRESENTED_NAME).write_bytes(data)
    assert problems_of(run)
    assert len(run_checks(run)) > 20


def test_a_repaired_run_is_consistent(run: Path) -> None:
    """A killed vehicle leaves frames without rows and without ticks."""
    ticks = list(read_presented(run))
    lines = run_damage.lines(run)
    run_damage.write(run, lines[:-4])
    write_ticks(run, ticks[:-7])
    manifest = json.loads((run / "manifest.json").read_text())
    run_damage.change_manifest(run, state="running", presenting=manifest["presenting"])
    assert repair(run) > 0
    assert problems_of(run) == []
