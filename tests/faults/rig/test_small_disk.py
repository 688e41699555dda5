"""The small disk for tests of a full disk; it needs the permission to mount a file system."""

import errno
import subprocess
from pathlib import Path

import pytest

from tests.support.faults.small_disk import small_disk


def test_a_disk_fills_up_and_is_unmounted_and_a_leftover_mount_is_replaced(tmp_path: Path) -> None:
    """A mounted folder cannot be deleted, so the mount of a killed run would make every later run fail."""
    disk = tmp_path / "disk"
    with small_disk(disk, 1 << 16):
        with pytest.raises(OSError, match="No space left") as failed:
            (disk / "large").write_bytes(bytes(1 << 17))
        assert failed.value.errno == errno.ENOSPC
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], check=True)
    with small_disk(disk, 1 << 16):
        (disk / "small").touch()
    assert not disk.is_mount()
