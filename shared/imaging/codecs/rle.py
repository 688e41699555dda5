"""The mask codec `rle`: runs of equal class ids, none longer than a row.

First come the ids of all runs (uint8), then their lengths (uint16, little-endian).
"""

import numpy as np

from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging.codecs.codec import Mask

_RUN_BYTES = 3  # A class id of one byte and a length of two.


class RleMasks:
    """Run lengths."""

    def encode(self, mask: Mask) -> Buffer:
        """See MaskCodec."""
        starts = np.ones(mask.shape, np.bool_)  # Each row starts a run, so a length fits two bytes.
        np.not_equal(mask[:, 1:], mask[:, :-1], out=starts[:, 1:])
        positions = np.flatnonzero(starts)
        lengths = np.diff(positions, append=mask.size).astype("<u2")
        return mask.reshape(-1)[positions].tobytes() + lengths.tobytes()

    def decode(self, data: Buffer, height: int, width: int) -> Mask:
        """See MaskCodec."""
        count, rest = divmod(len(data), _RUN_BYTES)
        if rest:
            raise SkylaneError(f"rle data has {len(data)} bytes, not a multiple of {_RUN_BYTES}: send it whole")
        ids = np.frombuffer(data, np.uint8, count)
        lengths = np.frombuffer(data, "<u2", count, offset=count)
        total = int(lengths.sum(dtype=np.uint64))
        if total != height * width:
            raise SkylaneError(f"rle runs have {total} pixels, expected {height * width}: encode it again")
        return np.repeat(ids, lengths).reshape(height, width)
