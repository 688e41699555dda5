"""Whole numbers as protocol buffers pack them: one, and lists of them without a turn for each number."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.compression import Buffer

MAX_PACKED_BYTES = 32 << 20  # Of one list: each takes five here for a while. What is larger has a better form.

_MORE = 0x80
_BITS = 7  # Of a number in each byte.
_BLOCK = 1 << 16  # Numbers written at a time, of which each takes up to a hundred bytes here for a while.


class VarintsError(ValueError):
    """Bytes that are no list of such numbers."""


def written(number: int) -> bytes:
    """One number, seven bits a byte, the least first: protocol buffers and MQTT have the same form."""
    number_bytes = bytearray()
    while number >= _MORE:
        number_bytes.append(number & ~_MORE & 0xFF | _MORE)
        number >>= _BITS
    number_bytes.append(number)
    return bytes(number_bytes)


def unpack_bytes(data: Buffer) -> npt.NDArray[np.uint8]:
    """The numbers of a packed list, each 0 to 255: of one byte below 128, of two from there on.

    Raises:
        VarintsError: one of them is another, the list ends within a number, or is larger than MAX_PACKED_BYTES.
    """
    if len(data) > MAX_PACKED_BYTES:
        raise VarintsError(f"a list of {len(data)} bytes: at most {MAX_PACKED_BYTES} are read; send the pixels raw")
    packed = np.frombuffer(data, np.uint8)
    goes_on = packed >= _MORE
    if not goes_on.any():
        return packed
    if goes_on[-1]:
        raise VarintsError("the list ends within a number: send it whole")
    follows = np.zeros(len(packed), np.bool_)
    follows[1:] = goes_on[:-1]
    if (follows & (packed > 1)).any():
        raise VarintsError("holds a number that is none of uint8: send 0 to 255")
    numbers = packed & ~np.uint8(_MORE)
    numbers[:-1] |= (packed[1:] << 7) * goes_on[
        :-1
    ]  # Of a second byte the one bit that counts; it is no number itself.
    return numbers[~follows]


def pack(numbers: npt.NDArray[Any]) -> Iterator[Buffer]:
    """The packed list of whole numbers or booleans, in parts; negative numbers take ten bytes each, as 64 bits."""
    flat = np.ascontiguousarray(numbers).reshape(-1)
    if flat.itemsize == 1 and (small := flat.view(np.uint8)).max(initial=0) < _MORE:
        yield small.data  # These are their own bytes.
        return
    for start in range(0, len(flat), _BLOCK):
        yield _packed(flat[start : start + _BLOCK].astype(np.uint64))


def _packed(numbers: npt.NDArray[np.uint64]) -> bytes:
    """At least one number."""
    highest = int(numbers.max())
    width = max(1, -(-highest.bit_length() // _BITS))
    shifts = np.arange(0, width * _BITS, _BITS).astype(np.uint8)
    rests = numbers.astype(np.min_scalar_type(highest))[:, np.newaxis] >> shifts
    written = (rests & (_MORE - 1)).astype(np.uint8)
    written[:, :-1] |= (rests[:, 1:] > 0) * np.uint8(_MORE)
    is_there = rests > 0
    is_there[:, 0] = True
    return bytes(written[is_there])
