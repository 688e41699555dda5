"""JSON from anybody, read by simdjson: its lists of numbers become arrays."""

from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import simdjson

from cloud.gateway.common.errors import Kind, RefusedError

MAX_JSON_BYTES = 64 << 20  # Of one body: while simdjson parses, which takes 7 ms for a megabyte, no other thread runs.
MAX_WIDE_BYTES = 16 << 20  # Of a body with text beyond ASCII: one such letter makes four bytes of each of its text.
MAX_DEPTH = 16  # Of lists and objects within each other.
MAX_KEYS = 256  # Of one object: simdjson looks for each from the first on.
MAX_VALUES = 1 << 20  # Besides lists of numbers: each is an object of Python, which takes some sixty bytes.

_SHOWN = 100
_COUNTED = 0xFFFFFF  # Up to which simdjson counts what is in a list.
_OF_NUMBERS = b"0123456789+-.eE \t\r\n"  # All that a list of numbers has beside its brackets and commas.
_BUFFER_TYPES: dict[Literal["u", "i", "d"], Any] = {
    "u": np.uint64,
    "i": np.int64,
    "d": np.float64,
}  # simdjson's, the exact ones first.

Numbers = npt.NDArray[Any]


def read_object(body: bytes) -> dict[str, Any]:
    """The object that a body holds.

    A list of numbers, or of such lists that are all of one size, is an array of uint64, int64 or float64.

    Raises:
        RefusedError: it is no JSON, no object, too large, nests too deep, or has a list of numbers that is uneven.
    """
    if len(body) > MAX_JSON_BYTES:
        raise RefusedError(Kind.TOO_LARGE, f"{len(body)} bytes of JSON: at most {MAX_JSON_BYTES} are read; send binary")
    if len(body) > MAX_WIDE_BYTES and (b"\\u" in body or not body.isascii()):
        raise RefusedError(
            Kind.TOO_LARGE, f"{len(body)} bytes with text beyond ASCII: at most {MAX_WIDE_BYTES} are read; send binary"
        )
    try:
        document = simdjson.Parser().parse(body)
    except (ValueError, RuntimeError) as error:  # RuntimeError: of depth, and of whole numbers beyond 64 bits.
        raise RefusedError(Kind.INVALID, f"the body is no JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(document, simdjson.Object):
        raise RefusedError(Kind.INVALID, f"the body is JSON of type {_type_name(document)}: send an object")
    value: dict[str, Any] = _Values(body).value(document, 1)
    return value


class _Values:
    """Makes Python's values and arrays of a document, in the order of its text."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._brackets: bytes | None = None  # The body without its numbers, once it is asked for.
        self._at = 0  # Up to which it has been read.
        self._left = MAX_VALUES

    def value(self, given: Any, depth: int) -> Any:
        """A value at so many levels."""
        if depth > MAX_DEPTH:
            raise RefusedError(Kind.INVALID, f"the JSON nests deeper than {MAX_DEPTH}: no call needs that")
        self._left -= 1
        if self._left < 0:
            raise RefusedError(
                Kind.TOO_LARGE,
                f"the body holds more than {MAX_VALUES} values that are no lists of numbers: send encoded pictures, or "
                "binary",
            )
        if isinstance(given, simdjson.Object):
            return self._object(given, depth)
        if not isinstance(given, simdjson.Array):
            return given
        sizes: list[int] = []
        first: Any = given
        while isinstance(first, simdjson.Array) and len(first):
            sizes.append(len(first))
            first = first[0]
        if not isinstance(first, (int, float)) or isinstance(first, bool):
            return [self.value(each, depth + 1) for each in given]
        if depth + len(sizes) > MAX_DEPTH:
            raise RefusedError(Kind.INVALID, f"the JSON nests deeper than {MAX_DEPTH}: no call needs that")
        return self._array(_numbers(given), sizes)

    def _object(self, given: simdjson.Object, depth: int) -> dict[str, Any]:
        keys = list(given)
        if len(keys) > MAX_KEYS or len(set(keys)) < len(keys) or any("\0" in key for key in keys):
            raise RefusedError(
                Kind.INVALID, f"an object has a key twice, a key with NUL, or more than {MAX_KEYS} keys: send others"
            )
        # Asked for one by one: all values at once would come as Python's lists.
        return {key: self.value(given[key], depth + 1) for key in keys}

    def _array(self, numbers: Numbers, sizes: list[int]) -> Numbers:
        """The numbers as lists of lists of these sizes.

        Raises:
            RefusedError: they were not in such lists.
        """
        if sizes[-1] == _COUNTED:
            sizes[-1] = len(numbers) // prod(sizes[:-1])
        if self._brackets is None:
            self._brackets = self._body.translate(None, _OF_NUMBERS)
        text = b""
        for size in reversed(sizes):
            if len(text) * size > len(self._brackets):  # More than there is.
                text = b""
                break
            text = b"[" + b",".join([text] * size) + b"]"
        found = self._brackets.find(text, self._at) if text and len(numbers) == prod(sizes) else -1
        if found < 0:
            raise RefusedError(
                Kind.INVALID, "a list of numbers holds lists that are not all of one size: send them full"
            )
        self._at = found + len(text)
        return numbers.reshape(sizes)


def _numbers(given: simdjson.Array) -> Numbers:
    """All numbers of a list of lists in one row.

    Raises:
        RefusedError: it holds something else too.
    """
    for kind, dtype in _BUFFER_TYPES.items():
        try:
            return np.frombuffer(given.as_buffer(of_type=kind), dtype)
        except (TypeError, ValueError):  # Of a number that this type has not, or of what is no number.
            continue
    raise RefusedError(Kind.INVALID, "a list holds numbers and something else: send numbers alone")


def _type_name(value: Any) -> str:
    return "list" if isinstance(value, simdjson.Array) else type(value).__name__
