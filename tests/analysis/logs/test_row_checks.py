"""Checks of frames that were not sent: their results come from an earlier frame or from the local model."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.runlog.latency_log import CSV_NAME, Outcome
from tests.analysis.conftest import problems_of
from tests.support import run_damage
from tests.support.run_damage import EARLIER_RUNS, change, change_manifest, later, longer

ANSWERED, DROPPED, REUSED, LOCAL = (
    Outcome.ANSWERED.value, Outcome.DROPPED.value, Outcome.REUSED.value, Outcome.ANSWERED_LOCALLY.value,
)  # fmt: skip


def test_a_run_with_gate_and_local_model_passes_every_check(gated_run: Path) -> None:
    """The equation of the frames includes those that were not sent."""
    assert problems_of(gated_run) == []
    outcomes = {row["outcome"] for row in run_damage.rows(gated_run)}
    assert {ANSWERED, DROPPED, REUSED, LOCAL} <= outcomes


@pytest.mark.parametrize("folder", EARLIER_RUNS, ids=lambda folder: folder.name)
def test_a_run_of_an_earlier_version_passes_every_check(folder: Path) -> None:
    """Its manifest counts fewer outcomes, and its log and journal have fewer columns."""
    assert problems_of(folder) == []


CELLS: dict[str, tuple[str, str, Callable[[str], str] | str, str]] = {
    # Outcome of the row, column, new value of the cell, and expected problem.
    "a reused row without its source": (REUSED, "reused_sequence", "", "is empty, but the frame is reused"),
    "a reused row without a distance": (REUSED, "gate_distance", "", "is empty, but the frame is reused"),
    "a reused row without a total": (REUSED, "total_ms", "", "is empty, but the frame is reused"),
    "a reused row with a wrong total": (REUSED, "total_ms", longer(1), "but its first and last timestamps are"),
    "a reused row with a worker": (REUSED, "worker", "w", "is given, but the frame was not sent"),
    "a reused row with an attempt": (REUSED, "attempts", "1", "is given, but the frame was not sent"),
    "a wrong time of the gate": (REUSED, "gated_ms", longer(1), "but its timestamps are"),
    "a local row of a cascade without a confidence": (LOCAL, "local_confidence", "", "but the cascade accepted the frame"),
    "a local row without an engine": (LOCAL, "engine", "", "is empty, but the frame is answered_locally"),
    "a local row with a wrong total": (LOCAL, "total_ms", longer(1), "but its first and last timestamps are"),
    "a local row with a source": (LOCAL, "reused_sequence", "0", "did not get the result of another"),
    "a confidence above one": (LOCAL, "local_confidence", "1.000001", "is more than 1"),
    "a distance of a frame that was not compared": (DROPPED, "gate_distance", "3.000000", "is given, but t_gated_ns is empty"),
    "a confidence without a run of the model": (DROPPED, "local_confidence", "0.500000", "but t_inferred_locally_ns is empty"),
    "a source of an answered frame": (ANSWERED, "reused_sequence", "0", "did not get the result of another"),
    "a source that comes later": (REUSED, "reused_sequence", "199", "is not the number of an earlier frame"),
    "text as a distance": (ANSWERED, "gate_distance", "near", "'near' is not a number with six decimals"),
}  # fmt: skip


@pytest.mark.parametrize("what", CELLS)
def test_an_inconsistent_cell_is_named_by_file_row_and_column(gated_run: Path, what: str) -> None:
    """The user must find the cell."""
    outcome, column, new, expected = CELLS[what]
    line = run_damage.line_of(gated_run, outcome)
    change(gated_run, line, **{column: new})
    problems = problems_of(gated_run)
    assert any(re.match(rf"{CSV_NAME}, row {line}, column {column}: .*{expected}", text) for text in problems), problems


def test_a_fallback_needs_no_confidence(gated_run: Path) -> None:
    """A segmentation network without a second output has none."""
    change_manifest(gated_run, configuration={"cascade": False})
    change(gated_run, run_damage.line_of(gated_run, LOCAL), local_confidence="")
    assert problems_of(gated_run) == []


@pytest.mark.parametrize("outcome", [REUSED, DROPPED])
def test_a_result_is_reused_from_a_frame_with_a_result_of_its_own(gated_run: Path, outcome: str) -> None:
    """Chains of reused results would accumulate errors."""
    others = [row["sequence"] for row in run_damage.rows(gated_run) if row["outcome"] == outcome]
    line = run_damage.line_of(gated_run, REUSED)
    change(gated_run, line, reused_sequence=others[0])
    (problem,) = problems_of(gated_run)
    assert problem == (
        f"{CSV_NAME}, row {line}, column reused_sequence: is the number of a frame without a result of its own"
    )


def test_a_result_is_reused_within_its_camera(gated_run: Path) -> None:
    """Another camera sees something else."""
    line = run_damage.line_of(gated_run, REUSED)
    change(gated_run, line, camera="/right")
    (problem,) = problems_of(gated_run)
    assert problem.endswith("column reused_sequence: is the number of a frame of another camera")


def test_a_result_that_came_later_cannot_have_been_reused(gated_run: Path) -> None:
    """No frame waits for the result of another."""
    rows = run_damage.rows(gated_run)
    line = run_damage.line_of(gated_run, REUSED)
    source = next(place for place, row in enumerate(rows) if row["sequence"] == rows[line - 2]["reused_sequence"])
    at_ns = int(rows[source]["t_due_ns"]) - int(rows[line - 2]["t_gated_ns"])
    stamps = {name: later(at_ns) for name in rows[0] if name.startswith("t_") and rows[line - 2][name]}
    change(gated_run, line, **stamps)
    assert [text.rpartition(": ")[2] for text in problems_of(gated_run)] == [
        "is the number of a frame whose result came later"
    ]


def test_a_source_without_a_row_is_reported(gated_run: Path) -> None:
    """Its result cannot be found."""
    text = run_damage.lines(gated_run)
    source = run_damage.rows(gated_run)[run_damage.line_of(gated_run, REUSED) - 2]["reused_sequence"]
    run_damage.write(gated_run, [line for line in text if line.split(",")[3] != source])
    assert any("is the number of a frame without a row" in problem for problem in problems_of(gated_run))


def test_a_source_whose_row_a_full_disk_lost_is_accepted(gated_run: Path) -> None:
    """`repair` writes its outcome into the reason."""
    rows = run_damage.rows(gated_run)
    source = rows[run_damage.line_of(gated_run, REUSED) - 2]["reused_sequence"]
    line = next(place for place, row in enumerate(rows, start=2) if row["sequence"] == source)
    text = run_damage.lines(gated_run)
    kept = dict.fromkeys(rows[0], "") | {
        name: rows[line - 2][name] for name in ("vehicle", "camera", "session", "sequence")
    }
    text[line - 1] = ",".join(
        (kept | {"outcome": "aborted", "reason": f"row_lost: {rows[line - 2]['outcome']}"}).values()
    )
    run_damage.write(gated_run, text)
    assert not any("reused_sequence" in problem for problem in problems_of(gated_run))


def test_a_reused_frame_may_be_late(gated_run: Path) -> None:
    """An expired frame keeps its source, its distance and its total."""
    line = run_damage.line_of(gated_run, REUSED)
    change(gated_run, line, outcome="expired", reason="reused after the deadline")
    counts = {outcome: sum(row["outcome"] == outcome for row in run_damage.rows(gated_run)) for outcome in Outcome}
    change_manifest(gated_run, outcomes=counts)
    assert problems_of(gated_run) == []


def test_a_manifest_must_count_reused_frames(gated_run: Path) -> None:
    """The outcomes sum to the frames read."""
    rows = run_damage.rows(gated_run)
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in Outcome}
    change_manifest(gated_run, outcomes={outcome: count for outcome, count in counts.items() if outcome != REUSED})
    (problem,) = problems_of(gated_run)
    assert f"outcomes.reused is None, but {CSV_NAME} has {counts[Outcome.REUSED]}" in problem
