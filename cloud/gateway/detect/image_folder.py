"""The image folder: pictures that callers name by path, and no file beside them."""

import os
import stat
from pathlib import Path

from cloud.gateway.common.errors import Kind, RefusedError

_LONGEST = 1024  # Characters.


def read_image(folder: Path | None, path: str, limit: int) -> bytes:
    """The bytes of the regular file at `path`, down from `folder`; no link is followed, neither in it nor on the way.

    Raises:
        RefusedError: there is no folder, no such file, or it has more than `limit` bytes. The same words for a file that
            is not there, and one that may not be read.
    """
    if folder is None:
        raise RefusedError(Kind.FORBIDDEN, "this worker reads no pictures by path: upload the file itself")
    names = path.split("/")
    if len(path) > _LONGEST or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise RefusedError(Kind.INVALID, f"path {path[:80]!r}: give one below the folder, such as left/0001.jpg")
    try:
        descriptor = _opened(folder, names)
    except (OSError, UnicodeEncodeError) as error:
        raise _no_such(path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_such(path)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RefusedError(Kind.TOO_LARGE, f"picture {path!r} has more than {limit} bytes: give a smaller one")
    return data


def _opened(folder: Path, names: list[str]) -> int:
    """Walks by descriptors: a folder that becomes a link on the way is not followed either."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for name in names[:-1]:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
        finally:
            os.close(at)
        at = below
    try:
        return os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)  # A pipe would wait.
    finally:
        os.close(at)


def _no_such(path: str) -> RefusedError:
    return RefusedError(Kind.NOT_FOUND, f"no picture {path!r} in the folder")
