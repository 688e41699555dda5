"""The manifest of a run, on a disk that fills while the run goes on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.faults.rig.small_disk import small_disk
from bench.faults.scenario import UnavailableError
from shared.runlog.latency_log import LogError
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest, reserve_space, write_manifest

BEGUN = {"state": "running", "vehicle": "car"}
ENDED = {**BEGUN, "state": "incomplete", "answered_by": ["a worker"] * 500}  # Larger than the first.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 256 KiB."""
    try:
        with small_disk(tmp_path / "disk", 256 << 10):
            yield tmp_path / "disk"
    except UnavailableError as error:
        pytest.skip(str(error))


def fill(disk: Path) -> None:
    """Leave no room on it."""
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(free))
    assert not shutil.disk_usage(disk).free


def test_a_run_whose_disk_has_filled_still_says_how_it_ended(disk: Path) -> None:
    """One that says for ever that it goes on is closed like a killed one, its answered frames as `aborted`."""
    write_manifest(disk, BEGUN)
    reserve_space(disk)
    fill(disk)
    write_manifest(disk, ENDED)
    assert read_manifest(disk) == ENDED


def test_without_the_room_it_could_not(disk: Path) -> None:
    """The test above must be one that can fail; and the first manifest stays whole."""
    write_manifest(disk, BEGUN)
    fill(disk)
    with pytest.raises(LogError, match="No space left"):
        write_manifest(disk, ENDED)
    assert read_manifest(disk) == BEGUN


def test_the_room_that_was_kept_is_no_part_of_the_manifest(tmp_path: Path) -> None:
    """It is given back: a folder holds thousands of runs."""
    reserve_space(tmp_path)
    write_manifest(tmp_path, BEGUN)
    assert [file.name for file in tmp_path.iterdir()] == [MANIFEST_NAME]
    assert (tmp_path / MANIFEST_NAME).stat().st_size < 100


def test_a_disk_that_is_full_from_the_start_keeps_no_room_and_stops_nothing(disk: Path) -> None:
    """The log tells that there is no room, in its own words."""
    write_manifest(disk, BEGUN)
    fill(disk)
    reserve_space(disk)
    assert read_manifest(disk) == BEGUN
