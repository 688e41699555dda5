"""Reads images from the image folder by path, and no file outside it."""

import os
import stat
from pathlib import Path

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError

MAX_PATH_CHARACTERS = 1024


def read_image(folder: Path | None, path: str, limit: int) -> bytes:
    """Reads the regular file at `path`, relative to `folder`; symbolic links are not followed anywhere on the way.

    Raises:
        ApiError: there is no folder, no such file, or the file has more than `limit` bytes. The message is the same for
            a missing file and for one that may not be read.
    """
    if folder is None:
        raise ApiError(ErrorCode.FORBIDDEN, "this worker has no image folder: upload the file itself")
    names = path.split("/")
    if len(path) > MAX_PATH_CHARACTERS or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise InvalidError(f"path {path[:80]!r}: send a path within the folder, such as left/0001.jpg")
    try:
        descriptor = _open(folder, names)
    except (OSError, UnicodeEncodeError) as error:
        raise _no_image(path) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_image(path)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ApiError(ErrorCode.TOO_LARGE, f"image {path!r} has more than {limit} bytes: choose a smaller one")
    return data


def _open(folder: Path, names: list[str]) -> int:
    """Opens a file folder by folder, so that a folder replaced by a link in the meantime is not followed either."""
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for name in names[:-1]:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
        finally:
            os.close(current)
        current = below
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        return os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=current)
    finally:
        os.close(current)


def _no_image(path: str) -> ApiError:
    return ApiError(ErrorCode.NOT_FOUND, f"no image {path!r} in the folder")
