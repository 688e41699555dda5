"""Libraries of synthetic drives for the benchmark of batches, and the digest of what a batch has written."""

import hashlib
import os
import shutil
from functools import partial
from pathlib import Path

from ops.processes.environment import OnStep
from rosbag_tools.drive.recording import SEED, sample_bag
from shared.files import file_sha256

_SMALL_WIDTH, _SMALL_HEIGHT = 484, 304


def drives(folder: Path, bags: int, frames: int, on_step: OnStep, *, small: bool = False) -> Path:
    """Fills a folder with different drives, which are rendered once and linked; `small`: at a quarter of the size."""
    render = partial(sample_bag, width=_SMALL_WIDTH, height=_SMALL_HEIGHT) if small else sample_bag
    for number in range(bags):
        on_step(f"drive {number + 1} of {bags}")
        bag = render(frames, seed=SEED + number)
        shutil.copytree(bag, folder / f"drive-{number}", copy_function=_link)
    return folder


def digest(out: Path) -> str:
    """Returns a digest of the names and contents of all files that a batch has written, but its lock and its record."""
    files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    result = hashlib.sha256()
    for name in sorted(files.keys() - {".lock"}):
        result.update(f"{name} {file_sha256(files[name])}\n".encode())
    return result.hexdigest()


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # Another file system.
        shutil.copyfile(source, target)
