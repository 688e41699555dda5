"""JSON from elsewhere, parsed once it is sure what memory that takes."""

import json
from typing import Any

from shared.encoding.compression import Buffer

_MARKS = (b"[", b"{", b",")  # Two bytes can be a list, and take thirty times as much when they are parsed.


class JsonError(ValueError):
    """Bytes that are no JSON, or JSON that would take far more memory than they do."""


def parse(data: Buffer, most_values: int, *, is_ascii: bool = False) -> Any:
    """What JSON says, of about so many values at most.

    `is_ascii`: it has no other letters, of which one makes four bytes of each.

    Raises:
        JsonError: it is none, or has more, or other letters.
    """
    text = bytes(data)
    if is_ascii and not text.isascii():
        raise JsonError("it is not in ASCII")
    if sum(map(text.count, _MARKS)) > most_values:
        raise JsonError(f"it has more than {most_values} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"{type(error).__name__} {error}"[:200]) from error
