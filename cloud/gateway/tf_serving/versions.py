"""Versions as TensorFlow Serving has them, whole numbers with labels, and as the worker has them, which are names.

A version whose name is a whole number is that number. Any other, such as `1.2`, has a number made of its name, above all
that people give, and is asked for by that or by its name as the label.
"""

import zlib

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.submission import Door

HIGHEST = (1 << 63) - 1

_MADE_FROM = 1 << 32


def number_of(version: str) -> int:
    """The number of a version by its name, 0 or above."""
    if version.isascii() and version.isdecimal() and str(number := int(version)) == version and number <= HIGHEST:
        return number
    return _MADE_FROM + zlib.crc32(version.encode())


def find(door: Door, model: str, number: int | None, label: str | None) -> str | None:
    """The name of the version that is asked for by its number or its label; None where neither is given.

    Raises:
        RefusedError: the model has no such version here.
    """
    if number is None:
        if label is not None:
            door.card(model, label)
        return label
    versions = [card.version for card in door.cards() if card.name == model]
    for version in versions:
        if number_of(version) == number:
            return version
    door.card(model)  # Which refuses a model that is not served at all.
    served = ", ".join(f"{number_of(version)} ({version})" for version in versions)
    raise RefusedError(Kind.NOT_FOUND, f"{model[:80]} version {number} is not served here: ask for {served}")
