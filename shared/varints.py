"""Lists of small whole numbers as protocol buffers pack them, read without a turn for each number."""

import numpy as np
import numpy.typing as npt

from shared.compression import Buffer

MAX_PACKED_BYTES = 32 << 20  # Of one list: each takes five here for a while. What is larger has a better form.

_MORE = 0x80


class VarintsError(ValueError):
    """Bytes that are no list of such numbers."""


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
