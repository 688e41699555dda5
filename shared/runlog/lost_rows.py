"""Rows that a full disk did not take: a file that got its place on the disk when the run began, and is overwritten in place.

A line of text, then one letter for each frame from a number on: a point, or the first letter of the outcome whose row was
lost. So even where nothing more can be written it is known which frames ended, and how. File systems that write
elsewhere what is overwritten (btrfs, ZFS) promise less: there it may fail as the row did.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

LOST_NAME = "latency.lost"
FRAMES = 1 << 14  # That the file has a letter for; of the others only the count is kept.
_NONE = b"."
_BEFORE = 1 << 10  # Frames before the first one lost that may yet lose their rows: they end in any order.
_HEAD = "from {:012d} beyond {:012d}\n"
_HEAD_BYTES = len(_HEAD.format(0, 0))
_CLOSED = -1


class LostRows:
    """The file of one run. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Take its place on the disk; where there is none, nothing is kept."""
        self._path = folder / LOST_NAME
        self._first: int | None = None  # Frame that the first letter is of; None: no row was lost.
        self._beyond = 0
        self._file = _CLOSED
        with suppress(OSError):
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if self._file != _CLOSED:
                os.posix_fallocate(self._file, 0, _HEAD_BYTES + FRAMES)
                os.pwrite(self._file, self._head() + _NONE * FRAMES, 0)
        except OSError:
            self.close()

    def note(self, sequence: int, outcome: str) -> None:
        """The row of a frame was lost."""
        if self._file == _CLOSED:
            return
        with suppress(OSError):
            if self._first is None:
                self._first = max(0, sequence - _BEFORE)
                os.pwrite(self._file, self._head(), 0)
            place = sequence - self._first
            if 0 <= place < FRAMES:
                os.pwrite(self._file, outcome[0].encode(), _HEAD_BYTES + place)
            else:
                self._beyond += 1
                os.pwrite(self._file, self._head(), 0)

    def close(self) -> None:
        """Leave; a file that tells of nothing is removed."""
        if self._file == _CLOSED:
            return
        os.close(self._file)
        self._file = _CLOSED
        if self._first is None:
            with suppress(OSError):
                self._path.unlink()

    def _head(self) -> bytes:
        return _HEAD.format(self._first or 0, self._beyond).encode()


def read_lost(folder: Path) -> Mapping[int, str]:
    """The first letter of each outcome whose row was lost, by the frame's sequence number; nothing where there is no file."""
    try:
        text = (folder / LOST_NAME).read_bytes()
        first = int(text[len("from ") : len("from ") + 12])
    except (OSError, ValueError):
        return {}
    letters = text[_HEAD_BYTES : _HEAD_BYTES + FRAMES].decode("ascii", errors="replace")
    return {first + place: letter for place, letter in enumerate(letters) if letter.isalpha()}


def lost_beyond(folder: Path) -> int:
    """How many more rows were lost, of frames that the file has no letter for."""
    try:
        return int((folder / LOST_NAME).read_bytes()[_HEAD_BYTES - 13 : _HEAD_BYTES])
    except (OSError, ValueError):
        return 0
