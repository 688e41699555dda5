"""Reads, writes, hashes and sorts files whose paths come from outside: reads only regular ones, writes through no link."""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import BinaryIO

from shared.errors import SkylaneError, unwritable_message

_DEVICES = Path("/dev")
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
    """Opens a regular file for reading; never blocks, even if a pipe or a device replaces it at that moment.

    Raises:
        OSError: see `check_file`, or the file cannot be read.
    """
    check_file(path)
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def missing_content(head: bytes) -> str:
    """Returns why a file that begins with `head` is only a placeholder, as text to follow its name; else an empty text."""
    if head.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the file itself: get it with `git lfs pull`"
    return "" if head else "is empty"


def read_file(path: Path) -> bytes:
    """Returns the content of a file; see `open_file`."""
    with open_file(path) as file:
        return file.read()


def create_file(path: Path, mode: int = 0o666) -> BinaryIO:
    """Creates a file for writing, in place of any file, link or FIFO of that name, which is removed and not opened.

    Raises:
        OSError: it cannot be created.
    """
    path.unlink(missing_ok=True)
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))


@contextmanager
def new_file(path: Path, root: Path | None = None, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yields a file for writing that replaces `path`, also a link of that name, at the end of the block.

    Nothing is left of it if the block fails. Missing folders are created.

    Args:
        path: The file.
        root: The folder of the run, study or batch: see `make_folder`.
        mode: Permissions of the file. Those that the umask or an existing file of that name lacks are removed.

    Raises:
        OSError: it cannot be written, or something other than a writable regular file has its name.
    """
    draft = _draft(path, root)
    with suppress(OSError):  # No file, or a dangling link.
        mode &= path.stat().st_mode
    with create_file(draft, mode) as file:
        try:
            yield file
            file.flush()
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def open_own(path: Path) -> BinaryIO:
    """Opens a file for reading and writing, or creates it; refuses a file with a second hard link.

    Raises:
        OSError: it is a link or no regular file, or cannot be opened.
    """
    with suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise OSError(
                errno.EINVAL,
                "it is a link, has another name too, or is no regular file: put a copy of the file in its place",
                str(path),
            )
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), "r+b")


def write_file(path: Path, content: bytes | str, root: Path | None = None, mode: int = 0o666) -> None:
    """Writes a file; see `new_file`. Text is encoded as UTF-8, with escapes for lone surrogates."""
    with new_file(path, root, mode) as file:
        file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)


def check_writable(path: Path, flag: str) -> None:
    """Checks that `write_file` can write a file after long work, and makes its folder.

    Raises:
        SkylaneError: it cannot be written; the message names `flag`.
    """
    try:
        draft = _draft(path)
        create_file(draft).close()
        draft.unlink()
    except OSError as error:
        raise SkylaneError(unwritable_message(path, error, flag)) from error


def _draft(path: Path, root: Path | None = None) -> Path:
    """Checks `path`, makes its folder, and returns the name of the draft that will replace `path`."""
    make_folder(path.parent, root)
    if path.exists():
        check_file(path)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if path.parent.resolve() == _DEVICES:  # For example /dev/stdout, a link that can lead to a file.
        raise OSError(errno.EINVAL, "it is a device: give a regular file", str(path))
    # Another process that writes the same file has another draft.
    return path.with_name(f"{path.name[-40:]}.{os.getpid()}.new")


def make_folder(folder: Path, root: Path | None = None) -> None:
    """Creates a folder and its parents. `root` may be a link; the folders between it and `folder` must not.

    Raises:
        OSError: it cannot be created, or a link leads elsewhere.
    """
    inside = (folder, *folder.parents)
    for part in inside[: inside.index(root)] if root in inside else ():
        if part.is_symlink():
            raise OSError(errno.ELOOP, f"{part} is a link to another place: remove it", str(part))
    folder.mkdir(parents=True, exist_ok=True)


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


def tree_sha256(path: Path, *, without: str = "") -> str:
    """Returns the SHA-256 of a file, or of the relative paths and contents of all files in a folder, sorted by path.

    Times, modes and empty folders do not change the hash, nor does the file with the relative path `without`.
    """
    if not path.is_dir():
        return file_sha256(path)
    digest = hashlib.sha256()
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.exists() and not file.is_dir()}
    for name in sorted(files.keys() - {without}):
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
