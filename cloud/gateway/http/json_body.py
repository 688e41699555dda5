"""Reads untrusted JSON with simdjson; lists of whole numbers become NumPy arrays."""

import json
from math import prod
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import simdjson

from cloud.gateway.common.tensors import SizeBudget
from cloud.serving.errors import ApiError, ErrorCode, InvalidError

MAX_JSON_BYTES = 64 << 20  # Size of a body: simdjson takes 7 ms per megabyte and blocks all other threads.
MAX_WIDE_BYTES = 16 << 20  # Size of a body with non-ASCII text, which takes four bytes per character.
MAX_DEPTH = 16  # Nesting depth of lists and objects.
MAX_KEYS = 256  # Keys of one object: simdjson searches them linearly.
MAX_VALUES = 1 << 20  # Values other than lists of whole numbers: each is a Python object of about sixty bytes.

_SHOWN = 100  # Characters of a parser's error message.
_SATURATED_LENGTH = 0xFFFFFF  # The greatest list length that simdjson reports.
_NUMBER_BYTES = b"0123456789- \t\r\n"  # All bytes of a list of whole numbers except brackets and commas.

Numbers = npt.NDArray[np.int64]


def read_object(body: bytes) -> dict[str, Any]:
    """Parses a JSON object.

    A list that begins with a whole number, or nested lists of equal lengths that do, becomes an array of int64.

    Raises:
        ApiError: the body is malformed, not an object, too large or too deep, or such a list is ragged or has another
            value.
    """
    if len(body) > MAX_JSON_BYTES:
        raise ApiError(ErrorCode.TOO_LARGE, f"{len(body)} bytes of JSON: send at most {MAX_JSON_BYTES}, or binary data")
    if len(body) > MAX_WIDE_BYTES and (b"\\u" in body or not body.isascii()):
        raise ApiError(
            ErrorCode.TOO_LARGE,
            f"{len(body)} bytes of JSON with non-ASCII text: send at most {MAX_WIDE_BYTES}, or binary data",
        )
    try:
        document = simdjson.Parser().parse(body)
    except (ValueError, RuntimeError) as error:  # RuntimeError: depth, or integers beyond 64 bits.
        raise InvalidError(f"the body is not valid JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(document, simdjson.Object):
        raise InvalidError(f"the body is JSON of type {_type_name(document)}: send an object")
    value: dict[str, Any] = _Values(body).value(document, 1)
    return value


class _Values:
    """Converts a document to Python values and arrays, in the order of its text."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._brackets: bytes | None = None  # The body without its numbers, once it is needed.
        self._position = 0  # In `_brackets`: the end of the last list of numbers.
        self._remaining = MAX_VALUES

    def value(self, given: Any, depth: int) -> Any:
        """Converts a value at a nesting depth."""
        sizes: list[int] = []
        first: Any = given
        while isinstance(first, simdjson.Array) and len(first):
            sizes.append(len(first))
            first = first[0]
        if depth + len(sizes) > MAX_DEPTH:
            raise InvalidError(f"the JSON is nested deeper than {MAX_DEPTH} levels: send a flatter body")
        self._remaining -= 1
        if self._remaining < 0:
            raise ApiError(
                ErrorCode.TOO_LARGE,
                f"the body holds more than {MAX_VALUES} values other than lists of whole numbers: send encoded images "
                "or binary data",
            )
        if isinstance(given, simdjson.Object):
            return self._object(given, depth)
        if not isinstance(given, simdjson.Array):
            return given
        if type(first) is int:
            return self._array(given, sizes)
        return [self.value(each, depth + 1) for each in given]

    def _object(self, given: simdjson.Object, depth: int) -> dict[str, Any]:
        keys = list(given)
        if len(keys) > MAX_KEYS or len(set(keys)) < len(keys) or any("\0" in key for key in keys):
            raise InvalidError(
                f"an object has a duplicate key, a key with NUL, or more than {MAX_KEYS} keys: send fewer, distinct keys"
            )
        # Each value is read separately: together they would arrive as Python lists.
        return {key: self.value(given[key], depth + 1) for key in keys}

    def _array(self, given: simdjson.Array, sizes: list[int]) -> Numbers:
        """Reads lists of whole numbers of the shape `sizes`, if the text has the matching brackets."""
        try:
            numbers = np.frombuffer(given.as_buffer(of_type="i"), np.int64)
        except (TypeError, ValueError) as error:  # Not a whole number, or out of range.
            raise InvalidError(
                "a list holds whole numbers and other values, or numbers of more than 64 bits: send pixels"
            ) from error
        if sizes[-1] == _SATURATED_LENGTH:
            sizes[-1] = len(numbers) // prod(sizes[:-1])
        if self._brackets is None:
            self._brackets = self._body.translate(None, _NUMBER_BYTES)
        pattern = b""
        for size in reversed(sizes):
            if len(pattern) * size > len(self._brackets):  # The pattern would be longer than the text.
                pattern = b""
                break
            pattern = b"[" + b",".join([pattern] * size) + b"]"
        found = self._brackets.find(pattern, self._position) if pattern and len(numbers) == prod(sizes) else -1
        if found < 0:
            raise InvalidError("a list of numbers is ragged: send nested lists of equal lengths")
        self._position = found + len(pattern)
        return numbers.reshape(sizes)


def _type_name(value: Any) -> str:
    return "list" if isinstance(value, simdjson.Array) else type(value).__name__


_CHUNK = 1 << 13  # Numbers that are written at once, which takes at most a millisecond.


def write_array(array: npt.NDArray[Any], budget: SizeBudget) -> bytes:
    """Writes an array as nested JSON lists, with every number exact; NaN and infinity as Python's JSON has them.

    Raises:
        ApiError: the text is larger than the budget.
    """
    if array.ndim == 0:
        return budget.charged(_text(array))
    row_size = array[:1].size
    if array.ndim > 1 and row_size > _CHUNK:
        return b"[" + b",".join(write_array(each, budget) for each in array) + b"]"
    rows = _CHUNK // max(1, row_size)
    chunks = (budget.charged(_text(array[at : at + rows])[1:-1]) for at in range(0, len(array), rows))
    return b"[" + b",".join(chunks) + b"]"


def _text(array: npt.NDArray[Any]) -> bytes:
    """Writes numbers; NaN and infinity as Python and TensorFlow Serving write them, although JSON has neither."""
    if array.dtype.kind in "iub" or np.isfinite(array).all():
        return msgspec.json.encode(array.tolist())
    return json.dumps(array.tolist(), separators=(",", ":")).encode()
