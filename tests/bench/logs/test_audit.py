"""Every promise of a run, broken once in the files of a real one."""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from bench.logs.audit import audit, checks
from shared.runlog.latency_log import CSV_NAME, JOURNAL_NAME, LogWriter, Outcome, Row
from shared.runlog.repair import repair
from shared.runlog.run_manifest import MANIFEST_NAME, write_manifest
from shared.stages import Stage
from tests.support import run_damage
from tests.support.run_damage import change, change_manifest, later, longer

ANSWERED, DROPPED = Outcome.ANSWERED.value, Outcome.DROPPED.value


def broken(folder: Path) -> dict[str, list[str]]:
    """The broken promises by name, as lines without the folder."""
    found = {
        check.name: [str(problem).removeprefix(f"{folder}/") for problem in check.problems] for check in checks(folder)
    }
    assert [str(problem) for problem in audit(folder)] == [f"{folder}/{line}" for of in found.values() for line in of]
    return {name: lines for name, lines in found.items() if lines}


def test_a_real_run_is_sound(consistent_run: Path) -> None:
    """An audit that finds fault with a sound run is believed by nobody; one that looks at nothing is worse."""
    assert audit(consistent_run) == ()
    outcomes = {row["outcome"] for row in run_damage.rows(consistent_run)}
    assert {ANSWERED, DROPPED} <= outcomes
    looked_at = {check.name: check.looked_at for check in checks(consistent_run)}
    assert len(looked_at) == 18
    assert all(looked_at.values())
    assert looked_at["durations are the stamps' differences"] == 40


CELLS: dict[str, tuple[str, str, Callable[[str], str] | str, str]] = {
    # A name: the outcome of the row, the column, what becomes of it, and what is said of that cell.
    "a duration that its stamps do not give": (
        ANSWERED, "encoded_ms", longer(1), r"is \d+\.\d{6}, but its stamps are \d+\.\d{6} ms apart",
    ),
    "a cloud duration that its stamps do not give": (ANSWERED, "inferred_ms", longer(1), "but its stamps are"),
    "a duration of a dropped frame without stamps": (
        DROPPED, "mask_decoded_ms", "0.000000", "is given, though what it follows from was not measured",
    ),
    "a total that is not the sum": (ANSWERED, "total_ms", longer(1), "but its first and last stamps are"),
    "a sum of the cloud that is none": (ANSWERED, "cloud_ms", longer(1), "but its first and last stamps are"),
    "a crossing that is not the rest": (ANSWERED, "crossing_ms", longer(1), "but time away less time in the cloud is"),
    "ways that do not sum to the crossing": (ANSWERED, "downlink_ms", longer(1), ""),
    "a way that the offset does not give": (ANSWERED, "clock_offset_ms", longer(1000), ""),
    "a clock that is told by half": (ANSWERED, "clock_error_ms", "", "is empty, but uplink_ms is given"),
    "a crossing called resolved": (ANSWERED, "uplink_resolved", lambda text: "10"[int(text)], "but it should be"),
    "a crossing that is not said to be resolved": (ANSWERED, "downlink_resolved", "", "is empty, but it should be"),
    "an answered row with a hole": (ANSWERED, "total_ms", "", "is empty, though the frame was answered"),
    "an answered row without a worker": (ANSWERED, "worker", "", "is empty or 0, though the frame was answered"),
    "an answered row without a worker's session": (ANSWERED, "worker_session", "", "is empty or 0"),
    "an answered row without its model's version": (ANSWERED, "model_version", "", "is empty or 0"),
    "a wait of a frame that was sent once": (ANSWERED, "retry_wait_ms", longer(1), "a frame sent once waits 0.000000 ms"),
    "an answered row that was never sent": (ANSWERED, "attempts", "0", "is empty or 0, though the frame was answered"),
    "a stamp that runs backwards": (
        ANSWERED, "t_returned_ns", later(-10**12), "ns before the stamp it follows: the row's times are left out",
    ),
    "text where a number belongs": (ANSWERED, "total_ms", "fast", "'fast' is no number of milliseconds"),
    "a dropped frame without a reason": (DROPPED, "reason", "", "is empty, though not answered"),
}  # fmt: skip


@pytest.mark.parametrize("what", CELLS)
def test_a_cell_that_breaks_a_promise_is_named(damaged_run: Path, what: str) -> None:
    """By file, row and column: who reads it must find it in a hundred thousand rows."""
    outcome, column, new, said = CELLS[what]
    line = run_damage.line_of(damaged_run, outcome)
    change(damaged_run, line, **{column: new})
    told = [text for of in broken(damaged_run).values() for text in of]
    whom = (column,) if said else ("uplink_ms", "downlink_ms", "crossing_ms")
    assert any(re.match(rf"{CSV_NAME}, row {line}, column ({'|'.join(whom)}): .*{said}", text) for text in told), told
    assert all(f"row {line}" in text for text in told)


def test_sums_are_exact_beyond_what_a_float_can_tell(damaged_run: Path) -> None:
    """One nanosecond in a stamp of nineteen digits is lost in a float; the log is exact, so its audit must be."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, t_due_ns=later(-1), taken_ms=longer(1), total_ms=longer(1))
    assert not audit(damaged_run)
    change(damaged_run, line, t_due_ns=later(-1))
    assert broken(damaged_run).keys() == {
        "durations are the stamps' differences",
        "total, cloud and crossing are their sums",
    }


def test_durations_that_agree_with_each_other_and_not_with_the_stamps_are_found(damaged_run: Path) -> None:
    """Sums alone would let two errors pass that cancel each other."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, encoded_ms=longer(500), demosaiced_ms=lambda text: str(Decimal(text) + Decimal("0.0005")))
    assert len(broken(damaged_run)["durations are the stamps' differences"]) == 2


def test_a_frame_without_its_row_is_missed(damaged_run: Path) -> None:
    """Unaccounted frames are what the ledger is there to prevent."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    sequence = run_damage.rows(damaged_run)[line - 2]["sequence"]
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, text[: line - 1] + text[line:])
    told = broken(damaged_run)
    assert f"{CSV_NAME}: frame {sequence} has no row" in told["every sequence number has its row"]
    (of_journal,) = told["every frame that was sent has its row"]
    assert re.match(rf"{JOURNAL_NAME}, row \d+, column sequence: frame {sequence} was sent and has no row", of_journal)
    counts = told["outcomes sum to the frames read"]
    assert f"{MANIFEST_NAME}: frames_read is 40, but {CSV_NAME} has 39 rows" in counts
    assert len(counts) == 2


def test_a_frame_with_two_rows_is_found(damaged_run: Path) -> None:
    """At most one accepted mask a frame: two rows would count it twice in every figure."""
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, [*text, text[5]])
    (told,) = broken(damaged_run)["no frame has two rows"]
    sequence = run_damage.rows(damaged_run)[4]["sequence"]
    assert told == (
        f"{CSV_NAME}, row 42, column sequence: frame {sequence} has its row already, in row 6: this one is left out"
    )


def test_gaps_are_told_as_ranges(damaged_run: Path) -> None:
    """A log without its second half is one fault, not twenty."""
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, text[:1])
    assert broken(damaged_run)["every sequence number has its row"] == [f"{CSV_NAME}: frames 0 to 39 have no rows"]


@pytest.mark.parametrize(
    ("facts", "promise", "said"),
    [
        ({"frames_read": 41}, "outcomes sum to the frames read", "frames_read is 41, but latency.csv has 40 rows"),
        ({"outcomes": {}}, "outcomes sum to the frames read", "outcomes.answered is None, but latency.csv has"),
        ({"outcomes": "many"}, "outcomes sum to the frames read", "outcomes.dropped is None"),
        (
            {"state": "incomplete"},
            "outcomes sum to the frames read",
            "the run is 'incomplete': 0 rows were not written",
        ),
        ({"state": "running"}, "the manifest belongs to the log", "says that the run still goes on"),
        ({"session": "another"}, "the manifest belongs to the log", "is of session 'another', which no row"),
        ({"model": {"sha256": "abc"}}, "source and model are named by their hashes", "model.sha256 is 'abc'"),
        ({"source": None}, "source and model are named by their hashes", "source.sha256 is None"),
    ],
)
def test_a_manifest_that_contradicts_the_log_is_told(
    damaged_run: Path, facts: dict[str, object], promise: str, said: str
) -> None:
    """A figure is traced by its manifest: one of another run, or one that counts otherwise, traces it wrongly."""
    change_manifest(damaged_run, **facts)
    assert any(said in text for text in broken(damaged_run)[promise])


def test_what_a_camera_saw_has_no_hash(damaged_run: Path) -> None:
    """Nothing can be hashed that nobody keeps."""
    change_manifest(damaged_run, source={"kind": "camera", "path": "camera:0"})
    assert not audit(damaged_run)


def test_a_sent_frame_that_the_journal_lacks_is_told(damaged_run: Path) -> None:
    """A journal with holes would make the next repair believe that nothing was open."""
    text = run_damage.lines(damaged_run, JOURNAL_NAME)
    sequence = text[3].split(",")[3]
    run_damage.write(damaged_run, text[:3] + text[4:], JOURNAL_NAME)
    assert broken(damaged_run) == {
        "every frame that was sent has its row": [f"{JOURNAL_NAME}: has no line of frame {sequence}, which was sent"]
    }


def test_a_journal_that_is_gone_or_of_another_run_is_told(damaged_run: Path) -> None:
    """Without it nobody can say what was open."""
    text = run_damage.lines(damaged_run, JOURNAL_NAME)
    session = json.loads((damaged_run / MANIFEST_NAME).read_text())["session"]
    run_damage.write(damaged_run, [*text, text[0].replace(session, "another")], JOURNAL_NAME)
    (told,) = broken(damaged_run)["every frame that was sent has its row"]
    assert told == f"{JOURNAL_NAME}, row {len(text) + 1}: is of no frame of this run"
    (damaged_run / JOURNAL_NAME).unlink()
    (told,) = broken(damaged_run)["every frame that was sent has its row"]
    assert told.startswith(f"{JOURNAL_NAME}: cannot be read: No such file")


def test_a_frame_that_was_sent_twice_has_two_lines_and_waits_within_its_sending(damaged_run: Path) -> None:
    """Else a retry could be told that was never made, or its wait counted beside the time until it left."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    sequence = run_damage.rows(damaged_run)[line - 2]["sequence"]
    change(damaged_run, line, attempts="2", retry_wait_ms="9999999.000000")
    told = broken(damaged_run)
    assert told.keys() == {"a second attempt is waited for within sent_ms", "every frame that was sent has its row"}
    (of_wait,) = told["a second attempt is waited for within sent_ms"]
    assert of_wait.endswith("column retry_wait_ms: is more than sent_ms, of which it is a part")
    (of_journal,) = told["every frame that was sent has its row"]
    assert of_journal == f"{JOURNAL_NAME}: has 1 lines of frame {sequence}, which was sent 2 times"
    change(damaged_run, line, retry_wait_ms="0.000001")
    journal = run_damage.lines(damaged_run, JOURNAL_NAME)
    again = next(text for text in journal if text.split(",")[3] == sequence)
    run_damage.write(damaged_run, [*journal, again], JOURNAL_NAME)
    assert not audit(damaged_run)


def test_a_killed_run_is_sound_once_it_is_repaired(tmp_path: Path) -> None:
    """What was open when it died, and what was passed over on its way, is accounted for; the audit agrees."""
    folder = tmp_path / "killed"
    with LogWriter(folder) as log:
        for sequence in (0, 2, 3):
            times = {Stage.DUE: sequence, Stage.TAKEN: sequence + 1}
            log.open(Row("car", "/left", "s1", sequence, Outcome.ABORTED, attempts=1, edge_times=times))
        log.close(Row("car", "/left", "s1", 0, Outcome.LOST, "no answer", attempts=1))
        log.close(Row("car", "/left", "s1", 4, Outcome.DROPPED, "window"))
    hashes = {"source": {"sha256": "a" * 64}, "model": {"sha256": "b" * 64}}
    write_manifest(folder, {"state": "running", "session": "s1", "vehicle": "car"} | hashes)
    assert {"every frame that was sent has its row", "every sequence number has its row"} < broken(folder).keys()
    assert repair(folder) == 3
    assert audit(folder) == ()
