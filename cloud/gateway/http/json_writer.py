"""Arrays as JSON, written without a turn for each number.

The json module takes 200 ms for the 1.8 million numbers of a picture of 968×608, and keeps all other threads from running
for so long; this takes an eighth of it, most of it in NumPy.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.gateway.common.size_budget import Room

_OPEN, _CLOSE, _COMMA = b"[],"
_TURN = 4096  # Numbers that the json module writes at a time: no other thread runs meanwhile.
_PIXEL_TURN = 1 << 20  # Pixels that NumPy writes at a time: it takes up to sixteen bytes of memory for each.
_CELL = 4  # Characters: three digits, and a comma.
_CELLS = np.frombuffer("".join(f"{number:>3}," for number in range(256)).encode(), "V4")


def write_array(array: npt.NDArray[Any], room: Room) -> bytes:
    """An array as JSON: lists of lists, every number exactly.

    Raises:
        RefusedError: there is no room for it.
    """
    if array.ndim == 0:
        return room.text(_number_text(array))
    are_pixels = array.dtype == np.uint8 and array.size > 0
    write, turn = (_pixel_text, _PIXEL_TURN) if are_pixels else (_number_text, _TURN)
    of_each = array[:1].size
    if array.ndim > 2 or (array.ndim > 1 and (not are_pixels or of_each > turn)):  # noqa: PLR2004  Rows of pixels are written together.
        return b"[" + b",".join(write_array(each, room) for each in array) + b"]"
    most = turn // max(1, of_each)
    turns = (room.text(write(array[at : at + most])[1:-1]) for at in range(0, len(array), most))
    return b"[" + b",".join(turns) + b"]"


def _number_text(numbers: npt.NDArray[Any]) -> bytes:
    """As JSON, by its module."""
    return json.dumps(numbers.tolist(), separators=(",", ":")).encode()


def _pixel_text(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A row of pixels, or a list of them, as JSON."""
    rows = np.atleast_2d(pixels)
    width = rows.shape[1] * _CELL
    lines = np.empty((len(rows), width + 2), np.uint8)
    lines[:, 0] = _OPEN
    lines[:, 1:-1] = np.take(_CELLS, rows).view(np.uint8)
    lines[:, -2] = _CLOSE
    lines[:, -1] = _COMMA
    written = lines.tobytes().translate(None, b" ")[:-1]
    return b"[" + written + b"]" if pixels.ndim > 1 else written
