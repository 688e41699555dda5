"""Opens, checks, hashes and sorts files whose paths come from outside; only regular ones: another may never end."""

import errno
import hashlib
import os
import re
import stat
from pathlib import Path, PurePath
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


def missing_content(head: bytes) -> str:
    """Returns why a file that begins with `head` has no content of its own, to follow its name; empty if it has one."""
    if head.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the file itself: get it with `git lfs pull`"
    return "" if head else "is empty"


def read_file(path: Path) -> bytes:
    """Returns the content of a file; see `open_file`."""
    with open_file(path) as file:
        return file.read()


def check_writable(path: Path, flag: str) -> None:
    """Checks that a file can be written after long work, and makes its folder.

    Raises:
        SkylaneError: it cannot be written; the message names `flag`.
    """
    is_new = not os.path.lexists(path)
    try:
        if path.exists():
            check_file(path)  # A file that takes its place would remove a device for all programs.
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK))
        if is_new:
            path.unlink()
    except OSError as error:
        raise SkylaneError(unwritable_message(path, error, flag)) from error


def resolved(path: Path) -> Path:
    """Returns the absolute path without links. Unlike `Path.resolve`, it keeps links that lead in a circle."""
    return Path(os.path.realpath(path))


_BLOCK_BYTES = 1 << 20


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def tree_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, or of the relative paths and contents of all files in a folder, sorted by path.

    Times, modes and empty folders do not change the hash.
    """
    if not path.is_dir():
        return file_sha256(path)
    digest = hashlib.sha256()
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.exists() and not file.is_dir()}
    for name in sorted(files):
        # The content is hashed as a digest of fixed length, so that names and contents cannot be confused.
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + bytes.fromhex(file_sha256(files[name])))
    return digest.hexdigest()


NaturalKey = tuple[list[tuple[int, str]], str]


def natural_key(name: str) -> NaturalKey:
    """Returns a sort key that compares the text of names, without regard to case, and their numbers, of any length.

    Names that differ only in case or in leading zeros are in the order of their characters.
    """
    # Text and numbers take turns, so that two names have the same kind at each position.
    parts = [part.casefold().lstrip("0") for part in re.split("([0-9]+)", name)]
    return [(len(part) if index % 2 else 0, part) for index, part in enumerate(parts)], name


def natural_path_key(path: PurePath) -> list[NaturalKey]:
    """Returns a sort key that compares paths folder by folder."""
    return [natural_key(part) for part in path.parts]
