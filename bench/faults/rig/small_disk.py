"""A disk that is soon full: a file system in memory, mounted for a while."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.faults.scenario import UnavailableError


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    """Have `folder`, which is made, be a disk of its own of that size. What it holds is gone with the block.

    Raises:
        UnavailableError: this user, or this container, may mount nothing.
    """
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        raise UnavailableError("no disk can be mounted here: there is no mount")
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_mount():  # Of a bench that was killed.
        subprocess.run([umount, "--lazy", str(folder)], check=False)
    command = [mount, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = next(iter(done.stderr.splitlines()), f"exit code {done.returncode}")
        raise UnavailableError(f"no disk may be mounted here: {why}")
    try:
        yield
    finally:  # Lazily: a process that a failing scenario left behind may still write there.
        subprocess.run([umount, "--lazy", str(folder)], check=True)
