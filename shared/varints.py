"""Lists of small whole numbers as protocol buffers pack them, read without a turn for each number."""

import numpy as np
import numpy.typing as npt

from shared.compression import Buffer

_MORE = 0x80


class VarintsError(ValueError):
    """Bytes that are no list of such numbers."""


def unpack_bytes(data: Buffer) -> npt.NDArray[np.uint8]:
    """The numbers of a packed list, each 0 to 255: of one byte below 128, of two from there on.

    Raises:
        VarintsError: one of them is another, or the list ends within a number.
    """
    packed = np.frombuffer(data, np.uint8)
    goes_on = packed >= _MORE
    if not goes_on.any():
        return packed
    if goes_on[-1]:
        raise VarintsError("the list ends within a number: send it whole")
    upper = packed[1:][goes_on[:-1]]
    if upper.max() > 1:
        raise VarintsError("holds a number that is none of uint8: send 0 to 255")
    is_first = np.ones(len(packed), np.bool_)
    is_first[1:] = ~goes_on[:-1]
    numbers: npt.NDArray[np.uint8] = packed[is_first]
    numbers[goes_on[is_first]] += (upper << 7) - _MORE  # Of which the eighth bit says that the number goes on.
    return numbers
