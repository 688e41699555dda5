"""A JSON object with large lists of pixels in it, which are read as arrays."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.gateway.json_body import no_number, read_object
from cloud.gateway.json_numbers import read_array
from cloud.gateway.refusal import Kind, RefusedError

MAX_VALUES = 1 << 22  # Of JSON that is read value by value: each takes some sixty bytes.

_LARGE = 4096  # Bytes; below, the json module is as good.
_PLACE = "-Infinity"  # Stands for an array: Python reads it, and JSON has it not.
_MOST_ARRAYS = 256  # Of one body: each takes a turn of ours, however small it is.


def read_with_arrays(body: bytes, opening: re.Pattern[bytes]) -> dict[str, Any]:
    """The object in a body, with arrays, uint8, for the large lists of pixels in it.

    `opening`: what such a list begins with, up to its first bracket or further.

    Raises:
        RefusedError: it is none, or has more other values than are read one by one.
    """
    skeleton, arrays = _without_arrays(body, opening)
    if arrays:
        left = arrays[::-1]
        try:
            told = read_object(skeleton, lambda text: left.pop() if text == _PLACE else no_number(text))
        except RefusedError:
            pass  # What is wrong is told of the body as it came.
        else:
            if not left:  # Else one was part of a text.
                return told
    values = body.count(b",") + body.count(b"[") + body.count(b"{")
    if values > MAX_VALUES:
        raise RefusedError(
            Kind.TOO_LARGE,
            f"the body holds {values} values that are no plain lists of whole numbers 0 to 255: at most {MAX_VALUES} "
            "are read; send encoded pictures, or binary",
        )
    return read_object(body)


def _without_arrays(body: bytes, opening: re.Pattern[bytes]) -> tuple[bytes, list[npt.NDArray[np.uint8]]]:
    """The body with `_PLACE` for each large array; and these. None where one is odd, or the body has that itself."""
    place = _PLACE.encode()
    if place in body:
        return body, []
    parts: list[bytes] = []
    arrays: list[npt.NDArray[np.uint8]] = []
    at = 0
    while len(body) - at > _LARGE and (found := opening.search(body, at)):
        start = body.index(b"[", found.start())
        end = body.find(b"}", start)
        end = len(body) if end < 0 else end
        if (quote := body.find(b'"', start, end)) >= 0:  # Looked for up to there alone: a body may have many lists.
            end = quote
        text = body[start:end].rstrip(b" \t\r\n,")
        if len(arrays) == _MOST_ARRAYS:
            return body, []
        array = read_array(text)
        if array is None:
            return body, []
        arrays.append(array)
        parts += (body[at:start], place)
        at = start + len(text)
    return b"".join((*parts, body[at:])), arrays
