"""JSON that came from anybody."""

import json
from collections.abc import Callable
from typing import Any, NoReturn

from cloud.gateway.refusal import Kind, RefusedError

_SHOWN = 80


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def read_object(body: bytes, constant: Callable[[str], Any] = _no_number) -> dict[str, Any]:
    """The object that a body holds. What nests too deep is refused, as are NaN and infinity, which JSON has not.

    `constant`: says instead what those stand for, in the order in which they come.

    Raises:
        RefusedError: it is no JSON, or no object.
    """
    try:
        value = json.loads(body, parse_constant=constant)
    except RecursionError as error:
        raise RefusedError(Kind.INVALID, "the JSON nests too deep: no call needs that") from error
    except ValueError as error:  # Of syntax, of UTF-8, or a number of thousands of digits.
        raise RefusedError(Kind.INVALID, f"the body is no JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(value, dict):
        raise RefusedError(Kind.INVALID, f"the body is JSON of type {type(value).__name__}: send an object")
    return value
