"""What a full disk took from a log is known all the same, by a file that was there before."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runlog.latency_log import COLUMNS, LogWriter, Outcome, Row, read_rows
from shared.runlog.lost_rows import FRAMES, LOST_NAME, LostRows, lost_beyond, read_lost
from shared.runlog.repair import repair
from shared.runlog.run_manifest import read_manifest, write_manifest
from tests.full_disk import disk_of


def _row(sequence: int, outcome: Outcome, reason: str = "") -> Row:
    return Row("car", "/camera", "s1", sequence, outcome, reason)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk may be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_repaired_run_says_what_became_of_frames_whose_rows_were_lost(small_disk: Path) -> None:
    """They were answered: `edge_died` would be a lie, and where even the journal was full they would be in no file."""
    folder = small_disk / "run"
    with LogWriter(folder) as log:
        write_manifest(folder, {"state": "running", "vehicle": "car", "session": "s1"})
        (small_disk / "ballast").write_bytes(bytes(90 << 10))
        count = 0
        while log.rows_lost < 50:
            log.open(_row(count, Outcome.ABORTED))
            log.close(_row(count, Outcome.EXPIRED if count % 10 == 3 else Outcome.ANSWERED))
            count += 1
        (small_disk / "ballast").unlink()
        log.open(_row(count, Outcome.ABORTED))  # It is under way when the vehicle dies.
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


def test_a_run_that_lost_no_row_keeps_no_file_of_them(tmp_path: Path) -> None:
    """Nobody should wonder what it holds."""
    with LogWriter(tmp_path) as log:
        assert (tmp_path / LOST_NAME).exists()
        log.close(_row(0, Outcome.ANSWERED))
    assert not (tmp_path / LOST_NAME).exists()
    assert (read_lost(tmp_path), lost_beyond(tmp_path)) == ({}, 0)


def test_a_disk_without_room_for_it_has_a_log_all_the_same(tmp_path: Path) -> None:
    """It is a help, and no condition."""
    with disk_of(len(",".join(COLUMNS)) + 1000), LogWriter(tmp_path) as log:
        for sequence in range(100):
            log.close(_row(sequence, Outcome.ANSWERED))
    assert log.rows_lost
    assert not (tmp_path / LOST_NAME).exists()


def test_frames_end_in_any_order_and_the_file_ends(tmp_path: Path) -> None:
    """What it has no letter for is counted; a frame that began before the first one lost may lose its row later."""
    lost = LostRows(tmp_path)
    for sequence in (5000, 4500, 5000 + FRAMES, 5001, 10):
        lost.note(sequence, "dropped")
    lost.close()
    assert read_lost(tmp_path) == {5000: "d", 4500: "d", 5001: "d"}
    assert lost_beyond(tmp_path) == 2
    (tmp_path / LOST_NAME).write_bytes(b"garbage")
    assert (read_lost(tmp_path), lost_beyond(tmp_path)) == ({}, 0)
