"""JSON that came from anybody."""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from cloud.gateway.refusal import Kind, RefusedError

MAX_WIDE_BYTES = 16 << 20  # Of a body with text beyond ASCII: one such letter makes four bytes of each of its text.

_SHOWN = 80
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # A half of a pair, which by itself is no letter and cannot be told.


def no_number(text: str) -> NoReturn:
    """What NaN and infinity are: raises ValueError."""
    raise ValueError(f"{text} is no number of JSON")


def read_object(body: bytes, constant: Callable[[str], Any] = no_number) -> dict[str, Any]:
    """The object that a body holds. What nests too deep is refused, as are NaN and infinity, which JSON has not.

    `constant`: says instead what those stand for, in the order in which they come.

    Raises:
        RefusedError: it is no JSON, or no object.
    """
    if len(body) > MAX_WIDE_BYTES and (b"\\u" in body or not body.isascii()):
        raise RefusedError(
            Kind.TOO_LARGE, f"{len(body)} bytes with text beyond ASCII: at most {MAX_WIDE_BYTES} are read; send binary"
        )
    try:
        text = body.decode()  # By json itself halves of pairs would be let through.
        value = json.loads(text, parse_constant=constant)
        if _ESCAPED_HALF.search(text):
            json.dumps(value, ensure_ascii=False, default=lambda _: None).encode()
    except RecursionError as error:
        raise RefusedError(Kind.INVALID, "the JSON nests too deep: no call needs that") from error
    except ValueError as error:  # Of syntax, of UTF-8, half a pair, or a number of thousands of digits.
        raise RefusedError(Kind.INVALID, f"the body is no JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(value, dict):
        raise RefusedError(Kind.INVALID, f"the body is JSON of type {type(value).__name__}: send an object")
    return value
