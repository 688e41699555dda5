"""The folder of a run: its name, and its removal if the run cannot begin."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from shared import clock

RUNS = Path("runs")  # Default parent folder of runs.


def run_folder(vehicle: str) -> Path:
    """Returns an unused folder for a run that begins now, such as `runs/20261124-214500-car-1` (time in UTC)."""
    began = datetime.fromtimestamp(clock.now_ns() // 10**9, UTC)
    return free_folder(RUNS / f"{began:%Y%m%d-%H%M%S}-{vehicle}")


def free_folder(folder: Path) -> Path:
    """Returns the folder, or the first of `<folder>-2`, `<folder>-3` … that does not exist."""
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def contents(folder: Path) -> set[Path] | None:
    """Returns the direct contents of `folder`; None if it does not exist."""
    return set(folder.iterdir()) if folder.is_dir() else None


@contextmanager
def discard_unless_started(folder: Path, before: set[Path] | None) -> Iterator[Callable[[], None]]:
    """Removes what was added to `folder` unless the yielded function is called, which marks the run as begun.

    Args:
        folder: Folder of the run. Enter this context after `LogWriter` has created its files there.
        before: The `contents` of the folder before that.
    """
    begun = False

    def begin() -> None:
        nonlocal begun
        begun = True

    try:
        yield begin
    finally:
        if not begun and before is None:
            shutil.rmtree(folder, ignore_errors=True)
        elif not begun:
            for added in set(folder.iterdir()) - (before or set()):
                _remove(added)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
