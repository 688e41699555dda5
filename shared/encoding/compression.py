"""Zstandard and LZ4 for data whose size is known beforehand: what would unfold to any other is refused."""

import lz4.block
from backports import zstd

from shared.errors import SkylaneError

Buffer = bytes | bytearray | memoryview

_ZSTD_LEVEL = 1  # Class ids fold well at any level and a camera's noise at none, so the fastest it is.


class CompressionError(SkylaneError):
    """Data that does not unfold to the size announced."""


def compress_zstd(data: Buffer) -> bytes:
    """One Zstandard frame, which tells the size it unfolds to."""
    return zstd.compress(data, level=_ZSTD_LEVEL)


def decompress_zstd(data: Buffer, size: int) -> bytes:
    """The `size` bytes that one Zstandard frame holds.

    Raises:
        CompressionError: it holds any other number, is damaged, or has something behind it.
    """
    try:
        declared = zstd.get_frame_info(data).decompressed_size  # None: it was written as a stream.
        if declared not in (None, size):
            raise CompressionError(f"zstd data unfolds to {declared} bytes, announced were {size}: they must agree")
        decompressor = zstd.ZstdDecompressor()
        unfolded = decompressor.decompress(data, size + 1)  # One more byte shows that there are too many.
    except zstd.ZstdError as error:
        raise CompressionError(f"zstd data does not unfold to {size} bytes ({error}): encode it again") from error
    if not decompressor.eof or decompressor.unused_data:
        problem = "unused bytes behind it" if decompressor.eof else "too long, or cut off"
        raise CompressionError(f"zstd data does not unfold to {size} bytes ({problem}): encode it again")
    return _of_size("zstd", unfolded, size)


def compress_lz4(data: Buffer) -> bytes:
    """One LZ4 block, without its size."""
    folded: bytes = lz4.block.compress(data, store_size=False)
    return folded


def decompress_lz4(data: Buffer, size: int) -> bytes:
    """The `size` bytes that one LZ4 block holds.

    Raises:
        CompressionError: it holds any other number, or is damaged.
    """
    try:
        unfolded: bytes = lz4.block.decompress(data, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise CompressionError(f"lz4 data does not unfold to {size} bytes ({error}): encode it again") from error
    return _of_size("lz4", unfolded, size)


def _of_size(codec: str, unfolded: bytes, size: int) -> bytes:
    if len(unfolded) != size:
        raise CompressionError(f"{codec} data unfolds to {len(unfolded)} bytes, announced were {size}: they must agree")
    return unfolded
