from pathlib import Path

import pytest

from shared.runlog.latency_log import COLUMNS, LatencyRow, LogWriter, Outcome, read_rows
from shared.runlog.lost_rows import CAPACITY, LETTERS, LOST_NAME, LostRows, read_lost
from shared.runlog.repair import repair
from shared.runlog.run_manifest import read_manifest, write_manifest
from tests.full_disk import disk_of
from tests.support.faults.small_disk import small_disk


def _row(sequence: int, outcome: Outcome, reason: str = "") -> LatencyRow:
    return LatencyRow("car", "/camera", "s1", sequence, outcome, reason)


def test_repair_adds_the_outcomes_of_lost_rows(tmp_path: Path) -> None:
    """The frames had ended, so the reason `edge_died` would be wrong; on a full disk the journal lacks them too."""
    with small_disk(tmp_path / "disk", 128 << 10):
        _lose_and_repair(tmp_path / "disk")


def _lose_and_repair(disk: Path) -> None:
    folder = disk / "run"
    with LogWriter(folder) as log:
        write_manifest(folder, {"state": "running", "vehicle": "car", "session": "s1"})
        (disk / "ballast").write_bytes(bytes(90 << 10))
        count = 0
        while log.rows_lost < 50:
            log.open(_row(count, Outcome.ABORTED))
            log.close(_row(count, Outcome.EXPIRED if count % 10 == 3 else Outcome.ANSWERED))
            count += 1
        (disk / "ballast").unlink()
        log.open(_row(count, Outcome.ABORTED))  # In flight when the vehicle dies.
    written = len(list(read_rows(folder)))
    assert repair(folder) == count + 1 - written
    rows = {int(row["sequence"]): row for row in read_rows(folder)}
    assert sorted(rows) == list(range(count + 1))
    for sequence in range(written, count):
        outcome = "expired" if sequence % 10 == 3 else "answered"
        assert (rows[sequence]["outcome"], rows[sequence]["reason"]) == ("aborted", f"row_lost: {outcome}")
        assert (rows[sequence]["vehicle"], rows[sequence]["camera"]) == ("car", "/camera")
    assert rows[count]["reason"] == "edge_died"
    manifest = read_manifest(folder)
    assert (manifest["state"], manifest["frames_read"]) == ("repaired", count + 1)
    assert repair(folder) == 0


def test_every_outcome_of_a_run_has_its_own_letter() -> None:
    """A shared letter would make `repair` name the wrong outcome; a missing one would end the run."""
    assert LETTERS.keys() == set(Outcome) - {Outcome.ABORTED}
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert all(len(letter) == 1 and letter.isalpha() for letter in LETTERS.values())


@pytest.mark.parametrize("outcome", [Outcome.REUSED, Outcome.ANSWERED_LOCALLY, Outcome.REJECTED])
def test_repair_names_the_outcome_of_a_row_lost_before_it_was_sent(tmp_path: Path, outcome: Outcome) -> None:
    """A reused or local frame has no line in the journal, so the file of lost rows alone knows it."""
    with LogWriter(tmp_path) as log:
        write_manifest(tmp_path, {"state": "running", "vehicle": "car", "session": "s1"})
        log.close(_row(0, Outcome.ANSWERED))
        with disk_of((tmp_path / "latency.csv").stat().st_size + 20):
            log.close(_row(1, outcome))
        log.close(_row(2, Outcome.ANSWERED))
    assert repair(tmp_path) == 1
    reasons = {row["sequence"]: row["reason"] for row in read_rows(tmp_path)}
    assert reasons == {"0": "", "1": f"row_lost: {outcome}", "2": ""}


def test_the_file_is_removed_if_no_row_was_lost(tmp_path: Path) -> None:
    """It would have no content."""
    with LogWriter(tmp_path) as log:
        assert (tmp_path / LOST_NAME).exists()
        log.close(_row(0, Outcome.ANSWERED))
    assert not (tmp_path / LOST_NAME).exists()
    assert read_lost(tmp_path) == ({}, 0)


def test_the_log_works_without_space_for_the_file(tmp_path: Path) -> None:
    """The file is optional."""
    with disk_of(len(",".join(COLUMNS)) + 1000), LogWriter(tmp_path) as log:
        for sequence in range(100):
            log.close(_row(sequence, Outcome.ANSWERED))
    assert log.rows_lost
    assert not (tmp_path / LOST_NAME).exists()


def test_rows_may_be_lost_in_any_order_and_beyond_the_capacity(tmp_path: Path) -> None:
    """An earlier frame may lose its row later; frames outside the range are only counted."""
    lost = LostRows(tmp_path)
    for sequence in (5000, 4500, 5000 + CAPACITY, 5001, 10):
        lost.note(sequence, "dropped")
    lost.close()
    assert read_lost(tmp_path) == ({5000: "d", 4500: "d", 5001: "d"}, 2)
    (tmp_path / LOST_NAME).write_bytes(b"garbage")
    assert read_lost(tmp_path) == ({}, 0)
