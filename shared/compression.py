"""Zstandard and LZ4 for data whose size is known beforehand: what would unfold to any other is refused."""

import lz4.block
import zstandard

from shared.errors import SkylaneError

Buffer = bytes | bytearray | memoryview

_ZSTD_LEVEL = 1  # Class ids fold well at any level and a camera's noise at none, so the fastest it is.
_UNKNOWN_SIZE = -1  # Of a Zstandard frame written as a stream.


class CompressionError(SkylaneError):
    """Data that does not unfold to the size announced."""


def fold_zstd(data: Buffer) -> bytes:
    """One Zstandard frame, which tells the size it unfolds to."""
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)


def unfold_zstd(data: Buffer, size: int) -> bytes:
    """The `size` bytes that one Zstandard frame holds.

    Raises:
        CompressionError: it holds any other number, is damaged, or has something behind it.
    """
    try:
        # A frame's own word on its size outranks max_output_size, so it is compared first.
        declared = zstandard.frame_content_size(data)
        if declared not in (_UNKNOWN_SIZE, size):
            raise CompressionError(f"zstd data unfolds to {declared} bytes, announced were {size}: they must agree")
        unfolded = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CompressionError(f"zstd data does not unfold to {size} bytes ({error}): encode it again") from error
    return _of_size("zstd", unfolded, size)


def fold_lz4(data: Buffer) -> bytes:
    """One LZ4 block, without its size."""
    folded: bytes = lz4.block.compress(data, store_size=False)
    return folded


def unfold_lz4(data: Buffer, size: int) -> bytes:
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
