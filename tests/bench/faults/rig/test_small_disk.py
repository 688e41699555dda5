"""The disk that is soon full, where this user may mount one."""

import errno
import subprocess
from pathlib import Path

import pytest

from bench.faults.rig.small_disk import small_disk
from bench.faults.scenario import UnavailableError


def test_a_disk_is_full_and_gone_and_that_of_a_killed_bench_is_no_obstacle(tmp_path: Path) -> None:
    """A mounted folder cannot be deleted: every later run would fail on it."""
    disk = tmp_path / "disk"
    try:
        with small_disk(disk, 1 << 16):
            with pytest.raises(OSError, match="No space left") as failed:
                (disk / "large").write_bytes(bytes(1 << 17))
            assert failed.value.errno == errno.ENOSPC
    except UnavailableError as error:
        pytest.skip(str(error))
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)
    with small_disk(disk, 1 << 16):
        (disk / "small").touch()
    assert not disk.is_mount()
