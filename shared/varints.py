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
    follows = np.zeros(len(packed), np.bool_)
    follows[1:] = goes_on[:-1]
    if (follows & (packed > 1)).any():
        raise VarintsError("holds a number that is none of uint8: send 0 to 255")
    numbers = packed & ~np.uint8(_MORE)
    numbers[:-1] |= (packed[1:] << 7) * goes_on[
        :-1
    ]  # Of a second byte the one bit that counts; it is no number itself.
    return numbers[~follows]
