"""A preallocated file that records which rows a full disk lost, and the outcome of their frames.

The file is allocated when the run begins and overwritten in place, which works on a full disk. It has a line of text
and then one character per frame, starting at a given sequence number: a dot, or the letter of the outcome whose row was
lost. On copy-on-write file systems (Btrfs, ZFS) overwriting may fail as well.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shared.files import read_file

LOST_NAME = "latency.lost"
CAPACITY = 1 << 14  # Frames that have a character in the file; later ones are only counted.
LETTERS = {  # The letter of each outcome; `aborted` is missing, as only `repair` writes rows with that outcome.
    "answered": "a",
    "reused": "u",
    "answered_locally": "y",
    "dropped": "d",
    "expired": "e",
    "overloaded": "o",
    "rejected": "r",
    "failed": "f",
    "lost": "l",
}
_NOT_LOST = b"."
_FRAMES_BEFORE = 1 << 10  # Space for frames before the first lost one, as frames end in any order.
_HEADER = "from {:012d} beyond {:012d}\n"
_HEADER_BYTES = len(_HEADER.format(0, 0))
_CLOSED = -1


class LostRows:
    """Writes the file of one run. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Allocates the file; if the disk has no space for it, nothing is recorded."""
        self._path = folder / LOST_NAME
        self._first: int | None = None  # Sequence number of the first character; None: no row was lost.
        self._uncovered = 0
        self._file = _CLOSED
        with suppress(OSError):
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if self._file != _CLOSED:
                os.posix_fallocate(self._file, 0, _HEADER_BYTES + CAPACITY)
                os.pwrite(self._file, self._header() + _NOT_LOST * CAPACITY, 0)
        except OSError:
            self.close()

    def note(self, sequence: int, outcome: str) -> None:
        """Records that the row of a frame was lost."""
        if self._file == _CLOSED:
            return
        with suppress(OSError):
            if self._first is None:
                self._first = max(0, sequence - _FRAMES_BEFORE)
                os.pwrite(self._file, self._header(), 0)
            position = sequence - self._first
            if 0 <= position < CAPACITY:
                os.pwrite(self._file, LETTERS[outcome].encode(), _HEADER_BYTES + position)
            else:
                self._uncovered += 1
                os.pwrite(self._file, self._header(), 0)

    def close(self) -> None:
        """Closes the file, and removes it if no row was lost."""
        if self._file == _CLOSED:
            return
        os.close(self._file)
        self._file = _CLOSED
        if self._first is None:
            with suppress(OSError):
                self._path.unlink()

    def _header(self) -> bytes:
        return _HEADER.format(self._first or 0, self._uncovered).encode()


def read_lost(folder: Path) -> tuple[Mapping[int, str], int]:
    """Returns the letter of the outcome of each lost row (see `LETTERS`) by sequence number, and how many more were lost.

    The others belong to frames outside the range of the file. Nothing was lost if there is no file.
    """
    try:
        text = read_file(folder / LOST_NAME)
        first, beyond = (int(text[end - 13 : end]) for end in (len("from ") + 12, _HEADER_BYTES))
    except (OSError, ValueError):
        return {}, 0
    letters = text[_HEADER_BYTES : _HEADER_BYTES + CAPACITY].decode("ascii", errors="replace")
    return {first + position: letter for position, letter in enumerate(letters) if letter.isalpha()}, beyond
