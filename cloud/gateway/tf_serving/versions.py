"""Converts between the worker's version names and the version numbers and labels of TensorFlow Serving.

A version whose name is a whole number has that number. Any other name, such as `1.2`, gets a number that is computed
from the name and greater than usual numbers; a caller can request it by this number, or by its name as the label.
"""

import zlib

from cloud.gateway.common.errors import ApiError, ErrorCode
from cloud.gateway.submission import Door

HIGHEST_VERSION = (1 << 63) - 1

_FIRST_COMPUTED = 1 << 32


def version_number(version: str) -> int:
    """Returns the number of a version, 0 or greater."""
    if (
        version.isascii()
        and version.isdecimal()
        and str(number := int(version)) == version
        and number <= HIGHEST_VERSION
    ):
        return number
    return _FIRST_COMPUTED + zlib.crc32(version.encode())


def find_version(submission: Door, model: str, number: int | None, label: str | None) -> str | None:
    """Returns the name of the version with a number or a label; None if neither is given.

    Raises:
        ApiError: the worker does not serve this version of the model.
    """
    if number is None:
        if label is not None:
            submission.card(model, label)
        return label
    versions = [card.version for card in submission.cards() if card.name == model]
    for version in versions:
        if version_number(version) == number:
            return version
    submission.card(model)  # Raises if the model is not served at all.
    served = ", ".join(f"{version_number(version)} ({version})" for version in versions)
    raise ApiError(ErrorCode.NOT_FOUND, f"{model[:80]} version {number} is not served: request {served}")
