"""Decompression with a limit on the output: a few hostile bytes can decompress to gigabytes."""

import bz2
from collections.abc import Callable, Mapping

import lz4.frame
from backports import zstd

from shared.errors import SkylaneError

MAX_MESSAGE_BYTES = 1 << 28  # Above the largest image that is accepted, with four channels.
MAX_CHUNK_BYTES = 1 << 28  # Recorders end a chunk at about one megabyte, or after one large message.

# Zstandard frames with a window above 128 MiB are refused; encoders write them only on request.
ZSTD_OPTIONS: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 27}

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"


class DecompressionError(SkylaneError):
    """Compressed data is damaged, has an unknown format, or is larger than the limit when decompressed."""


def decompress(data: bytes | memoryview, compression: str, limit_bytes: int) -> bytes:
    """Decompresses `data`, compressed with "" or "none", "bz2", "lz4" (frame format) or "zstd".

    Raises:
        DecompressionError: the data is damaged, or larger than `limit_bytes` when decompressed.
    """
    unfold = _CODECS.get(compression)
    if unfold is None:
        raise DecompressionError(
            f"compression {compression[:40]!r} is unknown: the known ones are {', '.join(filter(None, _CODECS))}"
        )
    try:
        unfolded = unfold(bytes(data), limit_bytes + 1)
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zstd.ZstdError) as error:
        raise DecompressionError(f"{compression} data is damaged: {error}") from error
    if len(unfolded) > limit_bytes:
        raise DecompressionError(f"{compression} data decompresses to more than {limit_bytes} bytes")
    return unfolded


def unfold_message(data: bytes) -> bytes:
    """Returns a CDR message, decompressed if the bag compressed it.

    Only metadata.yaml, which is often missing, says that a bag compresses each message. The first bytes show it too:
    a CDR message begins with a zero byte, a compressed one with the magic number of its codec.

    Raises:
        DecompressionError: the data is damaged, or larger than MAX_MESSAGE_BYTES when decompressed.
    """
    start = data[:4]
    if start == _ZSTD_MAGIC:
        return decompress(data, "zstd", MAX_MESSAGE_BYTES)
    if start == _LZ4_MAGIC:
        return decompress(data, "lz4", MAX_MESSAGE_BYTES)
    return data


def _zstd(data: bytes, most: int) -> bytes:
    """Returns at most `most` bytes of all Zstandard frames; fewer if the last one is truncated."""
    parts: list[bytes] = []
    while data and most > 0:
        decompressor = zstd.ZstdDecompressor(options=ZSTD_OPTIONS)
        parts.append(decompressor.decompress(data, most))
        most -= len(parts[-1])
        data = decompressor.unused_data  # Empty until a frame has ended.
    return b"".join(parts)


_CODECS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "": lambda data, _: data,
    "none": lambda data, _: data,
    "bz2": lambda data, most: bz2.BZ2Decompressor().decompress(data, most),
    "lz4": lambda data, most: bytes(lz4.frame.LZ4FrameDecompressor().decompress(data, most)),
    "zstd": _zstd,
}
