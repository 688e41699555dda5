import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runlog.latency_log import LogError
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest, reserve_space, write_manifest
from tests.support.faults.small_disk import small_disk

BEGUN = {"state": "running", "vehicle": "car"}
ENDED = {**BEGUN, "state": "incomplete", "answered_by": ["a worker"] * 500}  # Larger than the first.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB; skips the test if this machine does not permit one."""
    with small_disk(tmp_path / "disk", 256 << 10):
        yield tmp_path / "disk"


def fill(disk: Path) -> None:
    """Fills the disk."""
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(free))
    assert not shutil.disk_usage(disk).free


def test_reserved_space_takes_the_final_manifest_on_a_full_disk(disk: Path) -> None:
    """A run that stays in the state `running` would be repaired like a killed one."""
    write_manifest(disk, BEGUN)
    reserve_space(disk)
    fill(disk)
    write_manifest(disk, ENDED)
    assert read_manifest(disk) == ENDED


def test_a_full_disk_without_reserved_space_keeps_the_first_manifest(disk: Path) -> None:
    """This also shows that the test above can fail."""
    write_manifest(disk, BEGUN)
    fill(disk)
    with pytest.raises(LogError, match="No space left"):
        write_manifest(disk, ENDED)
    assert read_manifest(disk) == BEGUN


def test_unused_reserved_space_is_released(tmp_path: Path) -> None:
    """A folder may hold thousands of runs."""
    reserve_space(tmp_path)
    write_manifest(tmp_path, BEGUN)
    assert [file.name for file in tmp_path.iterdir()] == [MANIFEST_NAME]
    assert (tmp_path / MANIFEST_NAME).stat().st_size < 100


def test_reserving_space_on_a_full_disk_does_nothing(disk: Path) -> None:
    """The latency log reports the full disk."""
    write_manifest(disk, BEGUN)
    fill(disk)
    reserve_space(disk)
    assert read_manifest(disk) == BEGUN
