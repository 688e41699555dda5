"""Opens files whose paths come from outside: only regular files, because reading anything else may never end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from shared.errors import SkylaneError, unwritable_message

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def check_file(path: Path) -> None:
    """Checks that a path leads to a regular file. It is not opened: opening a device can already have an effect.

    Raises:
        OSError: it leads to something else, to nothing or in a circle; `strerror` names the problem.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}: give a regular file", str(path))


def open_file(path: Path) -> BinaryIO:
    """Opens a regular file for reading; never waits, also if something else takes its place meanwhile.

    Raises:
        OSError: see `check_file`, or the file cannot be read.
    """
    check_file(path)
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def read_file(path: Path) -> bytes:
    """Returns the content of a file; see `open_file`."""
    with open_file(path) as file:
        return file.read()


def check_writable(path: Path, flag: str) -> None:
    """Creates a file that is written after long work, and its folder; the SkylaneError if it cannot names `flag`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK))
    except OSError as error:
        raise SkylaneError(unwritable_message(path, error, flag)) from error


def resolved(path: Path) -> Path:
    """Returns the absolute path without links. Unlike `Path.resolve`, it keeps links that lead in a circle."""
    return Path(os.path.realpath(path))
