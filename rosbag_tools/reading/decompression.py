"""Decompression that never yields more than was announced: a few hostile bytes can unfold into gigabytes."""

import bz2
from collections.abc import Callable, Mapping

import lz4.frame
from backports import zstd

from shared.errors import SkylaneError

MAX_MESSAGE_BYTES = 1 << 28  # 268 million: above the largest picture we take, with room for four channels.
MAX_CHUNK_BYTES = 1 << 28  # Recorders close a chunk at about one megabyte, or after one large message.

# Frames with a window above 128 MiB are refused; encoders write such windows only if asked.
ZSTD_OPTIONS: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 27}

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"


class DecompressionError(SkylaneError):
    """Compressed bytes are damaged, of an unknown kind, or unfold into more than they may."""


def decompress(data: bytes | memoryview, compression: str, limit_bytes: int) -> bytes:
    """Unfold `data`, compressed with one of "", "none", "bz2", "lz4" (its frame format) or "zstd".

    Raises:
        DecompressionError: see there; `limit_bytes` is what may come out.
    """
    unfold = _CODECS.get(compression)
    if unfold is None:
        raise DecompressionError(f"compression {compression[:40]!r} is none of {', '.join(filter(None, _CODECS))}")
    try:
        unfolded = unfold(bytes(data), limit_bytes + 1)
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zstd.ZstdError) as error:
        raise DecompressionError(f"{compression} data is damaged: {error}") from error
    if len(unfolded) > limit_bytes:
        raise DecompressionError(f"{compression} data unfolds into more than {limit_bytes} bytes")
    return unfolded


def unfold_message(data: bytes) -> bytes:
    """A CDR message as it was before its bag compressed it, if it did.

    Bags that compress each message say so only in metadata.yaml, which is often lost. A CDR message begins with a zero
    byte, a compressed one with its codec's magic, so that the bytes themselves tell.

    Raises:
        DecompressionError: the compressed bytes are damaged or unfold into more than a message may have.
    """
    start = data[:4]
    if start == _ZSTD_MAGIC:
        return decompress(data, "zstd", MAX_MESSAGE_BYTES)
    if start == _LZ4_MAGIC:
        return decompress(data, "lz4", MAX_MESSAGE_BYTES)
    return data


def _zstd(data: bytes, most: int) -> bytes:
    """The first `most` bytes of all frames, or as many as there are where the last one is cut off."""
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
