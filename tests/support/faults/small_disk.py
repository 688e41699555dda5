"""A small file system in memory, for tests with a full disk."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.faults.rig import UnavailableError


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    """Mounts a file system of `size_bytes` at `folder`; its content is lost when the block ends.

    Raises:
        UnavailableError: this user or this container may not mount.
    """
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        raise UnavailableError("no disk can be mounted here: the command mount is missing")
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_mount():  # Left by a run that was killed.
        subprocess.run([umount, "--lazy", str(folder)], check=False)
    command = [mount, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = next(iter(done.stderr.splitlines()), f"exit code {done.returncode}")
        raise UnavailableError(f"no disk may be mounted here: {why}")
    try:
        yield
    finally:  # Lazy unmount: a process that a failed scenario left behind may still write there.
        subprocess.run([umount, "--lazy", str(folder)], check=True)
