"""A JSON parser for untrusted input, with a limit on the number of values."""

import json
from typing import Any

from shared.compression import Buffer

_VALUE_MARKS = (b"[", b"{", b",")  # Two bytes of JSON can become a list that takes 30 times as much memory.


class JsonError(ValueError):
    """The input is not JSON, or would need far more memory than its size."""


def parse(data: Buffer, max_values: int, *, is_ascii: bool = False) -> Any:
    """Parses JSON of approximately `max_values` values at most.

    Args:
        data: UTF-8 text.
        max_values: Limit of opening brackets, opening braces and commas together.
        is_ascii: Rejects other characters: a single one makes Python use four bytes for each character of its string.

    Raises:
        JsonError: The input is not JSON, has too many values or, with `is_ascii`, other characters.
    """
    text = bytes(data)
    if is_ascii and not text.isascii():
        raise JsonError("it is not in ASCII")
    if sum(map(text.count, _VALUE_MARKS)) > max_values:
        raise JsonError(f"it has more than {max_values} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"{type(error).__name__} {error}"[:200]) from error
