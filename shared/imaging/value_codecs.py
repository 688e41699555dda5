"""Codecs that hold the values of an image or mask row by row, as they are or compressed to one LZ4 block or Zstandard frame."""

from math import prod
from typing import Any

import numpy as np

from shared.compression import BYTE_CODECS, Buffer
from shared.errors import SkylaneError
from shared.imaging.codec import Mask
from shared.imaging.frames import Layout, Pixels


class RawImages:
    """The values of the pixels, 16-bit values little-endian; encoding and decoding copy nothing."""

    byte_codec = BYTE_CODECS["raw"]

    def encode(self, pixels: Pixels, layout: Layout, _quality: int) -> Buffer:
        """See ImageCodec."""
        return self.byte_codec.compress(pixels.astype(layout.dtype.newbyteorder("<"), copy=False).data.cast("B"))

    def decode(self, data: Buffer, layout: Layout, shape: tuple[int, ...]) -> Pixels:
        """See ImageCodec. The pixels are read-only."""
        values = self.byte_codec.decompress(data, prod(shape) * layout.dtype.itemsize)
        pixels: Any = np.frombuffer(values, layout.dtype.newbyteorder("<")).reshape(shape)
        pixels.flags.writeable = False
        return np.asarray(pixels.astype(layout.dtype, copy=False))


class Lz4Images(RawImages):
    """The fastest of the compressed ones."""

    byte_codec = BYTE_CODECS["lz4"]


class ZstdImages(RawImages):
    """Smaller than LZ4."""

    byte_codec = BYTE_CODECS["zstd"]


class RawMasks:
    """The class ids of a mask: an image of one 8-bit channel."""

    images = RawImages()

    def encode(self, mask: Mask) -> Buffer:
        """See MaskCodec."""
        return self.images.encode(mask, Layout.MONO8, 0)

    def decode(self, data: Buffer, height: int, width: int) -> Mask:
        """See MaskCodec. The mask is read-only."""
        return np.asarray(self.images.decode(data, Layout.MONO8, (height, width)), np.uint8)


class Lz4Masks(RawMasks):
    """The fastest of the compressed ones."""

    images = Lz4Images()


class ZstdMasks(RawMasks):
    """The smallest."""

    images = ZstdImages()


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
