import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from analysis.logs.audit import audit, run_checks
from shared.runlog.latency_log import CSV_NAME, JOURNAL_NAME, LatencyRow, LogWriter, Outcome
from shared.runlog.repair import repair
from shared.runlog.run_manifest import MANIFEST_NAME, write_manifest
from shared.stages import Stage
from tests.support import run_damage
from tests.support.run_damage import change, change_manifest, later, longer

ANSWERED, DROPPED = Outcome.ANSWERED.value, Outcome.DROPPED.value


def failed_checks(folder: Path) -> dict[str, list[str]]:
    """Returns the problems of each failed check as text without the folder."""
    found = {
        check.name: [str(problem).removeprefix(f"{folder}/") for problem in check.problems]
        for check in run_checks(folder)
    }
    assert [str(problem) for problem in audit(folder)] == [f"{folder}/{line}" for of in found.values() for line in of]
    return {name: lines for name, lines in found.items() if lines}


def test_a_real_run_passes_every_check(consistent_run: Path) -> None:
    """Every check must look at the rows of a real run and accept them."""
    assert audit(consistent_run) == ()
    outcomes = {row["outcome"] for row in run_damage.rows(consistent_run)}
    assert {ANSWERED, DROPPED} <= outcomes
    checked = {check.name: check.checked for check in run_checks(consistent_run)}
    assert len(checked) == 21
    assert all(checked.values())
    assert checked["durations are the differences of timestamps"] == 40


CELLS: dict[str, tuple[str, str, Callable[[str], str] | str, str]] = {
    # Outcome of the row, column, new value of the cell, and expected problem.
    "a duration that contradicts its timestamps": (
        ANSWERED, "encoded_ms", longer(1), r"is \d+\.\d{6}, but its timestamps are \d+\.\d{6} ms apart",
    ),
    "a cloud duration that contradicts its timestamps": (ANSWERED, "inferred_ms", longer(1), "but its timestamps are"),
    "a duration of a dropped frame without timestamps": (
        DROPPED, "mask_decoded_ms", "0.000000", "is given, but it depends on values that were not measured",
    ),
    "a total that is not the sum": (ANSWERED, "total_ms", longer(1), "but its first and last timestamps are"),
    "a cloud time that is not the sum": (ANSWERED, "cloud_ms", longer(1), "but its first and last timestamps are"),
    "a crossing that is not the remaining time": (ANSWERED, "crossing_ms", longer(1), "but time away minus time in the cloud is"),
    "uplink and downlink that do not sum to the crossing": (ANSWERED, "downlink_ms", longer(1), ""),
    "an uplink that contradicts the clock offset": (ANSWERED, "clock_offset_ms", longer(1000), ""),
    "a clock offset without its error": (ANSWERED, "clock_error_ms", "", "is empty, but uplink_ms is given"),
    "a wrong resolved flag": (ANSWERED, "uplink_resolved", lambda text: "10"[int(text)], "but uplink_ms and clock_error_ms give"),
    "a missing resolved flag": (ANSWERED, "downlink_resolved", "", "is empty, but downlink_ms and clock_error_ms give"),
    "an answered row with an empty time": (ANSWERED, "total_ms", "", "is empty, but the frame was answered"),
    "an answered row without a worker": (ANSWERED, "worker", "", "is empty or 0, but the frame was answered"),
    "an answered row without a worker's session": (ANSWERED, "worker_session", "", "is empty or 0"),
    "an answered row without its model's version": (ANSWERED, "model_version", "", "is empty or 0"),
    "a retry wait of a frame that was sent once": (ANSWERED, "retry_wait_ms", longer(1), "a frame that was sent once waits 0.000000 ms"),
    "an answered row without an attempt": (ANSWERED, "attempts", "0", "is empty or 0, but the frame was answered"),
    "a decreasing timestamp": (
        ANSWERED, "t_returned_ns", later(-10**12), "ns before the previous timestamp: the row's times are skipped",
    ),
    "text in a number column": (ANSWERED, "total_ms", "fast", "'fast' is not a number of milliseconds"),
    "a dropped frame without a reason": (DROPPED, "reason", "", "is empty, but the frame got no result"),
}  # fmt: skip


@pytest.mark.parametrize("what", CELLS)
def test_an_inconsistent_cell_is_named_by_file_row_and_column(damaged_run: Path, what: str) -> None:
    """The user must find the cell in a log of a hundred thousand rows."""
    outcome, column, new, expected = CELLS[what]
    line = run_damage.line_of(damaged_run, outcome)
    change(damaged_run, line, **{column: new})
    problems = [text for texts in failed_checks(damaged_run).values() for text in texts]
    columns = (column,) if expected else ("uplink_ms", "downlink_ms", "crossing_ms")
    assert any(
        re.match(rf"{CSV_NAME}, row {line}, column ({'|'.join(columns)}): .*{expected}", text) for text in problems
    ), problems
    assert all(f"row {line}" in text for text in problems)


def test_sums_are_checked_to_the_nanosecond(damaged_run: Path) -> None:
    """A float loses one nanosecond of a timestamp with nineteen digits; the log is exact, so the checks must be exact."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, t_due_ns=later(-1), taken_ms=longer(1), total_ms=longer(1))
    assert not audit(damaged_run)
    change(damaged_run, line, t_due_ns=later(-1))
    assert failed_checks(damaged_run).keys() == {
        "durations are the differences of timestamps",
        "total, cloud and crossing agree with their stages",
    }


def test_two_wrong_durations_that_cancel_each_other_are_found(damaged_run: Path) -> None:
    """A check of the sums alone would miss them."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, encoded_ms=longer(500), demosaiced_ms=lambda text: str(Decimal(text) + Decimal("0.0005")))
    assert len(failed_checks(damaged_run)["durations are the differences of timestamps"]) == 2


def test_a_missing_row_is_found(damaged_run: Path) -> None:
    """Every frame must be accounted for."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    sequence = run_damage.rows(damaged_run)[line - 2]["sequence"]
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, text[: line - 1] + text[line:])
    failed = failed_checks(damaged_run)
    assert f"{CSV_NAME}: frame {sequence} has no row" in failed["every sequence number has a row"]
    (journal_problem,) = failed["every sent frame has a row"]
    assert re.match(
        rf"{JOURNAL_NAME}, row \d+, column sequence: frame {sequence} was sent but has no row", journal_problem
    )
    counts = failed["outcomes sum to the frames read"]
    assert f"{MANIFEST_NAME}: frames_read is 40, but {CSV_NAME} has 39 rows" in counts
    assert len(counts) == 2


def test_missing_rows_are_reported_as_ranges(damaged_run: Path) -> None:
    """A log without its second half has one problem, not twenty."""
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, text[:1])
    assert failed_checks(damaged_run)["every sequence number has a row"] == [f"{CSV_NAME}: frames 0 to 39 have no rows"]


@pytest.mark.parametrize(
    ("facts", "check", "expected"),
    [
        ({"frames_read": 41}, "outcomes sum to the frames read", "frames_read is 41, but latency.csv has 40 rows"),
        ({"outcomes": {}}, "outcomes sum to the frames read", "outcomes.answered is None, but latency.csv has"),
        ({"outcomes": "many"}, "outcomes sum to the frames read", "outcomes.dropped is None"),
        (
            {"state": "incomplete"},
            "outcomes sum to the frames read",
            "the run is 'incomplete': 0 rows were not written",
        ),
        ({"state": "running"}, "the manifest belongs to the log", "says that the run is still running"),
        ({"session": "another"}, "the manifest belongs to the log", "belongs to session 'another', but no row"),
        ({"model": {"sha256": "abc"}}, "source and model have a hash", "model.sha256 is 'abc'"),
        ({"source": None}, "source and model have a hash", "source.sha256 is None"),
    ],
)
def test_a_manifest_that_contradicts_the_log_is_reported(
    damaged_run: Path, facts: dict[str, object], check: str, expected: str
) -> None:
    """The manifest documents the origin of every result, so it must agree with the log."""
    change_manifest(damaged_run, **facts)
    assert any(expected in text for text in failed_checks(damaged_run)[check])


def test_a_camera_needs_no_hash(damaged_run: Path) -> None:
    """The images of a live camera are not stored."""
    change_manifest(damaged_run, source={"kind": "camera", "path": "camera:0"})
    assert not audit(damaged_run)


def test_a_sent_frame_missing_from_the_journal_is_reported(damaged_run: Path) -> None:
    """An incomplete journal would hide open frames from a later repair."""
    text = run_damage.lines(damaged_run, JOURNAL_NAME)
    sequence = text[-1].split(",")[3]
    run_damage.write(damaged_run, text[:-1], JOURNAL_NAME)
    assert failed_checks(damaged_run) == {
        "every sent frame has a row": [f"{JOURNAL_NAME}: has no line for frame {sequence}, which was sent"]
    }


def test_a_journal_that_is_missing_or_of_another_run_is_reported(damaged_run: Path) -> None:
    """Without the journal, open frames cannot be identified."""
    text = run_damage.lines(damaged_run, JOURNAL_NAME)
    session = json.loads((damaged_run / MANIFEST_NAME).read_text())["session"]
    run_damage.write(damaged_run, [*text, text[0].replace(session, "another")], JOURNAL_NAME)
    (problem,) = failed_checks(damaged_run)["every sent frame has a row"]
    assert problem == f"{JOURNAL_NAME}, row {len(text) + 1}: does not belong to this run"
    (damaged_run / JOURNAL_NAME).unlink()
    (problem,) = failed_checks(damaged_run)["every sent frame has a row"]
    assert problem.startswith(f"{JOURNAL_NAME}: cannot be read: No such file")


def test_a_retried_frame_has_two_journal_lines_and_its_wait_is_part_of_sent_ms(damaged_run: Path) -> None:
    """A retry without a second journal line, or a wait longer than sent_ms, is reported."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    sequence = run_damage.rows(damaged_run)[line - 2]["sequence"]
    change(damaged_run, line, attempts="2", retry_wait_ms="9999999.000000")
    failed = failed_checks(damaged_run)
    assert failed.keys() == {"retry_wait_ms is part of sent_ms", "every sent frame has a row"}
    (wait_problem,) = failed["retry_wait_ms is part of sent_ms"]
    assert wait_problem.endswith("column retry_wait_ms: is more than sent_ms, of which it is a part")
    (journal_problem,) = failed["every sent frame has a row"]
    assert journal_problem == f"{JOURNAL_NAME}: has 1 lines for frame {sequence}, which was sent 2 times"
    change(damaged_run, line, retry_wait_ms="0.000001")
    journal = run_damage.lines(damaged_run, JOURNAL_NAME)
    again = next(text for text in journal if text.split(",")[3] == sequence)
    run_damage.write(damaged_run, [*journal, again], JOURNAL_NAME)
    assert not audit(damaged_run)


def test_a_killed_run_is_consistent_after_its_repair(tmp_path: Path) -> None:
    """The repair adds rows for frames that were open and for sequence numbers without a row."""
    folder = tmp_path / "killed"
    with LogWriter(folder) as log:
        for sequence in (0, 2, 3):
            times = {Stage.DUE: sequence, Stage.TAKEN: sequence + 1}
            log.open(LatencyRow("car", "/left", "s1", sequence, Outcome.ABORTED, attempts=1, edge_times=times))
        log.close(LatencyRow("car", "/left", "s1", 0, Outcome.LOST, "no answer", attempts=1))
        log.close(LatencyRow("car", "/left", "s1", 4, Outcome.DROPPED, "window"))
    hashes = {"source": {"sha256": "a" * 64}, "model": {"sha256": "b" * 64}}
    write_manifest(folder, {"state": "running", "session": "s1", "vehicle": "car"} | hashes)
    assert {"every sent frame has a row", "every sequence number has a row"} < failed_checks(folder).keys()
    assert repair(folder) == 3
    assert audit(folder) == ()
