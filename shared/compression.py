"""Lossless codecs for bytes of known size. Decompression never produces more than the expected number of bytes."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import lz4.block
from backports import zstd

from shared.errors import SkylaneError

Buffer = bytes | bytearray | memoryview
BufferT = TypeVar("BufferT", bound=Buffer)

_ZSTD_LEVEL = 1  # The fastest: class ids compress well at any level, camera noise at none.


def compress_zstd(data: Buffer) -> bytes:
    """Compresses to one Zstandard frame that declares its decompressed size."""
    return zstd.compress(data, level=_ZSTD_LEVEL)


def decompress_zstd(data: Buffer, size: int) -> bytes:
    """Decompresses one Zstandard frame of exactly `size` bytes.

    Raises:
        SkylaneError: The frame has another size, is damaged, or is followed by more data.
    """
    try:
        declared = zstd.get_frame_info(data).decompressed_size  # None if the frame was written as a stream.
        if declared not in (None, size):
            raise SkylaneError(f"zstd data declares {declared} bytes, expected {size}: they must agree")
        decompressor = zstd.ZstdDecompressor()
        decompressed = decompressor.decompress(data, size + 1)  # The extra byte reveals data that is too long.
    except zstd.ZstdError as error:
        raise SkylaneError(f"zstd data does not decompress to {size} bytes ({error}): encode it again") from error
    if not decompressor.eof or decompressor.unused_data:
        problem = "followed by unused bytes" if decompressor.eof else "too long or truncated"
        raise SkylaneError(f"zstd data does not decompress to {size} bytes ({problem}): encode it again")
    return _check_size("zstd", decompressed, size)


def compress_lz4(data: Buffer) -> bytes:
    """Compresses to one LZ4 block without a size header."""
    compressed: bytes = lz4.block.compress(data, store_size=False)
    return compressed


def decompress_lz4(data: Buffer, size: int) -> bytes:
    """Decompresses one LZ4 block of exactly `size` bytes.

    Raises:
        SkylaneError: The block has another size or is damaged.
    """
    try:
        decompressed: bytes = lz4.block.decompress(data, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise SkylaneError(f"lz4 data does not decompress to {size} bytes ({error}): encode it again") from error
    return _check_size("lz4", decompressed, size)


class ByteCodec(NamedTuple):
    """A pair of functions; `decompress` takes the data and the expected size, and raises `SkylaneError`."""

    compress: Callable[[Buffer], Buffer]
    decompress: Callable[[Buffer, int], Buffer]


BYTE_CODECS = {
    "raw": ByteCodec(lambda data: data, lambda data, size: _check_size("raw", data, size)),
    "lz4": ByteCodec(compress_lz4, decompress_lz4),
    "zstd": ByteCodec(compress_zstd, decompress_zstd),
}


def _check_size(codec: str, decompressed: BufferT, size: int) -> BufferT:
    if len(decompressed) != size:
        raise SkylaneError(f"{codec} data has {len(decompressed)} bytes, expected {size}: they must agree")
    return decompressed
