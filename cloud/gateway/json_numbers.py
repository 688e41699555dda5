"""Arrays of pixels as JSON, read and written without a turn for each number.

The json module takes 200 ms for the 1.8 million numbers of a picture of 968×608, and keeps all other threads from
running for so long; this takes an eighth of it, most of it in NumPy. What it does not know, it leaves to the json module.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.gateway.refusal import Kind, RefusedError
from cloud.gateway.room import Room

Pixels = npt.NDArray[np.uint8]

MAX_DEPTH = 8  # Lists within lists; four hold a batch of pictures.

_OPEN, _CLOSE, _COMMA, _ZERO = b"[],0"[0], b"[],0"[1], b"[],0"[2], b"[],0"[3]
_SPACE = b" \t\r\n"
_HIGHEST = 255
_LONGEST = 3  # Digits of a number up to that.
_TURN = 4096  # Numbers that the json module writes at a time: no other thread runs meanwhile.
_PIXEL_TURN = 1 << 20  # Pixels that NumPy writes at a time: it takes up to sixteen bytes of memory for each.
_CELL = 4  # Characters: as many digits, and a comma.
_CELLS = np.frombuffer("".join(f"{number:>{_LONGEST}}," for number in range(256)).encode(), "V4")


def read_array(text: bytes) -> Pixels | None:
    """The array in a JSON list of lists of whole numbers 0 to 255, uint8; None if it is anything else, however near.

    Raises:
        RefusedError: the lists nest deeper than `MAX_DEPTH`.
    """
    compact = text.translate(None, _SPACE)
    depth = len(compact) - len(compact.lstrip(b"["))
    if depth > MAX_DEPTH:
        raise RefusedError(Kind.INVALID, f"lists nest {depth} deep: at most {MAX_DEPTH} are read")
    if depth == 0 or not compact.endswith(b"]" * depth):
        return None
    characters = np.frombuffer(compact, np.uint8)
    commas = np.flatnonzero(characters == _COMMA)
    closed = _closed(characters, commas, depth)
    if closed is None:
        return None
    starts = np.concatenate(((depth,), commas + closed + 1))
    ends = np.concatenate((commas - closed, (len(compact) - depth,)))
    if len(compact) != len(text) and _runs(np.frombuffer(text, np.uint8)) != len(starts):
        return None  # A space within a number.
    numbers = _numbers(characters, starts, ends)
    return None if numbers is None else numbers.reshape(_shape(closed, depth))


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


def _pixel_text(pixels: Pixels) -> bytes:
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


def odd_values(values: Sequence[Any]) -> list[Any]:
    """Some of what is neither number nor truth value in lists of lists, or a truth value among numbers; none else.

    To be asked before NumPy is: of one long string among numbers it makes a long string of each of them, and of a truth
    value a 1.
    """
    waiting = [values]
    seen: set[type] = set()
    while waiting:
        each = waiting.pop()
        kinds = set(map(type, each))
        seen |= kinds
        if kinds == {list}:
            waiting += each
        elif odd := kinds - {int, float, bool, list, np.ndarray}:
            return [next(value for value in each if type(value) in odd)]
    return [True] if bool in seen and seen & {int, float, np.ndarray} else []


def _closed(characters: Pixels, commas: npt.NDArray[np.int64], depth: int) -> npt.NDArray[np.int8] | None:
    """How many lists end at each comma, where as many begin and all of a depth are of one size; None where not.

    A bracket anywhere else is left, in what is then no number.
    """
    closed = np.zeros(len(commas), np.int8)
    size = 1
    for level in range(1, depth):
        # Commas between lists of this depth: the first tells how many numbers one holds, and so where all must be.
        ends = characters[commas[size - 1 :: size] - level] == _CLOSE
        size *= 1 + (int(ends.argmax()) if ends.any() else len(ends))
        expected = commas[size - 1 :: size]
        if (len(commas) + 1) % size:
            return None
        if not ((characters[expected - level] == _CLOSE) & (characters[expected + level] == _OPEN)).all():
            return None
        closed[size - 1 :: size] = level
    return closed


def _shape(closed: npt.NDArray[np.int8], depth: int) -> list[int]:
    """The sides, by how many lists end at each comma."""
    counts = [len(closed) + 1, *(1 + int(np.count_nonzero(closed >= level)) for level in range(1, depth))]
    return [inner // outer for inner, outer in zip(counts, [*counts[1:], 1], strict=True)][::-1]


def _numbers(characters: Pixels, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Pixels | None:
    """The numbers between those places; None where one is none of uint8 as JSON writes it."""
    lengths = (ends - starts).astype(np.int8)
    if (ends - starts).max() > _LONGEST or lengths.min() < 1:
        return None
    digits = characters - np.uint8(_ZERO)  # What is no digit is 10 or more.
    ones = digits[ends - 1]
    tens = digits[ends - 2] * (lengths >= 2)  # noqa: PLR2004  Two digits or more.
    hundreds = digits[ends - 3] * (lengths >= _LONGEST)  # Of the first number it may be the last character: times 0.
    if max(ones.max(), tens.max(), hundreds.max()) > 9:  # noqa: PLR2004  The last digit.
        return None
    leading = np.choose(lengths - 1, (np.uint8(1), tens, hundreds))
    numbers = hundreds * np.uint16(100) + tens * np.uint8(10) + ones
    return numbers.astype(np.uint8) if leading.all() and numbers.max() <= _HIGHEST else None


def _runs(text: Pixels) -> int:
    """How many runs of digits there are."""
    is_digit = (text - np.uint8(_ZERO)) <= 9  # noqa: PLR2004  The last digit.
    return int(np.count_nonzero(is_digit[1:] & ~is_digit[:-1])) + int(is_digit[:1].sum())
