"""Exclusive use of the working folder of a run."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import SkylaneError


class PlaceError(SkylaneError):
    """The given folder cannot be used."""


@contextmanager
def place(folder: Path, *, emptied: bool = False) -> Iterator[None]:
    """Creates a folder if needed and locks it, because another run would delete the files of this one.

    `emptied`: whether to delete the content of the folder first.

    Raises:
        PlaceError: another run uses the folder, or it is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise PlaceError(f"cannot use {folder} ({error.strerror}): choose another --out") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise PlaceError(f"another run uses {folder}: wait for its end, or choose another --out") from None
    try:
        for path in folder.iterdir() if emptied else ():
            _delete(path)
        yield
    finally:
        os.close(handle)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
