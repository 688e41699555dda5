"""The mask codecs, all lossless. A mask is an array of class ids."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.encoding.compression import BYTE_CODECS, Buffer, ByteCodec, CompressionError
from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.image_header import ImageHeaderError, read_header
from shared.imaging.opencv import MAX_PIXELS, MAX_SIDE, cv2

Mask = npt.NDArray[np.uint8]

_UINT8 = np.dtype(np.uint8)  # Comparing a dtype with np.uint8 itself is slow.

# On a 968×608 mask, strategy RLE with filter UP gives the smallest file and is nearly the fastest.
_PNG_PARAMETERS = [
    *(cv2.IMWRITE_PNG_COMPRESSION, 1),
    *(cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE),
    *(cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP),
]
_RUN_BYTES = 3  # A class id of one byte and a length of two.


class MaskCodecError(SkylaneError):
    """A mask cannot be encoded, or encoded data is not the expected mask."""


def encode(mask: Mask, codec: str) -> Buffer:
    """Encodes a mask of H×W uint8 class ids.

    The codecs:

    - `raw`: the ids row by row, as a view of the mask.
    - `png`: an 8-bit greyscale PNG.
    - `zstd`: a Zstandard frame of the raw ids; the smallest.
    - `lz4`: an LZ4 block of the raw ids, without a size header; the fastest of the compressed ones.
    - `rle`: runs of equal ids, none longer than a row. First the ids of all runs (uint8), then their lengths (uint16,
      little-endian).

    Raises:
        UnknownNameError: The codec is unknown.
        MaskCodecError: The mask has another dtype or shape, or is too large.
    """
    if mask.dtype != _UINT8 or mask.ndim != 2:  # noqa: PLR2004  Rows and columns.
        raise MaskCodecError(
            f"mask is {mask.dtype} of shape {mask.shape}: give uint8 class ids of shape height × width"
        )
    height, width = mask.shape
    _check_shape(height, width)
    return _codec(codec).encode(np.ascontiguousarray(mask))


def decode(data: Buffer, codec: str, shape: tuple[int, int]) -> Mask:
    """Decodes a mask of a known shape to H×W uint8; read-only for `raw`. Checks every size before allocating memory.

    Raises:
        UnknownNameError: The codec is unknown.
        MaskCodecError: The data is not a mask of this shape.
    """
    decoder = _codec(codec).decode
    _check_shape(*shape)
    return decoder(data, *shape)


def _encode_bytes(codec: ByteCodec, mask: Mask) -> Buffer:
    return codec.compress(mask.data.cast("B"))


def _decode_bytes(codec: ByteCodec, data: Buffer, height: int, width: int) -> Mask:
    try:
        decompressed = codec.decompress(data, height * width)
    except CompressionError as error:
        raise MaskCodecError(f"mask of {height}×{width}: {error}") from error
    mask = np.frombuffer(decompressed, np.uint8).reshape(height, width)
    mask.flags.writeable = False
    return mask


def _encode_png(mask: Mask) -> bytes:
    done, data = cv2.imencode(".png", mask, _PNG_PARAMETERS)
    assert done
    return data.tobytes()


def _decode_png(data: Buffer, height: int, width: int) -> Mask:
    try:
        header = read_header(data)
    except ImageHeaderError as error:
        raise MaskCodecError(f"png mask cannot be read: {error}") from error
    if (header.kind, header.height, header.width, header.channels, header.bits) != ("png", height, width, 1, 8):
        raise MaskCodecError(
            f"png mask is a {header.kind} of {header.height}×{header.width}, {header.channels} × {header.bits} bits:"
            f" send an 8-bit grey PNG of {height}×{width}"
        )
    try:
        mask: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise MaskCodecError(f"png mask cannot be decoded: {error.err}: encode it again") from error
    if mask is None or mask.shape != (height, width) or mask.dtype != np.uint8:
        raise MaskCodecError("png mask is damaged after its header: encode it again")
    return np.asarray(mask)


def _encode_rle(mask: Mask) -> bytes:
    height, width = mask.shape
    starts = np.ones((height, width), np.bool_)  # Each row starts a run, so a length fits two bytes.
    np.not_equal(mask[:, 1:], mask[:, :-1], out=starts[:, 1:])
    positions = np.flatnonzero(starts)
    lengths = np.diff(positions, append=mask.size).astype("<u2")
    return mask.reshape(-1)[positions].tobytes() + lengths.tobytes()


def _decode_rle(data: Buffer, height: int, width: int) -> Mask:
    count, rest = divmod(len(data), _RUN_BYTES)
    if rest:
        raise MaskCodecError(f"rle mask has {len(data)} bytes, not a multiple of {_RUN_BYTES}: send it whole")
    ids = np.frombuffer(data, np.uint8, count)
    lengths = np.frombuffer(data, "<u2", count, offset=count)
    total = int(lengths.sum(dtype=np.uint64))
    if total != height * width:
        raise MaskCodecError(
            f"rle mask's runs have {total} pixels, {height}×{width} needs {height * width}: encode it again"
        )
    return np.repeat(ids, lengths).reshape(height, width)


class _Codec(NamedTuple):
    encode: Callable[[Mask], Buffer]
    decode: Callable[[Buffer, int, int], Mask]


def _byte_codec(name: str) -> _Codec:
    return _Codec(partial(_encode_bytes, BYTE_CODECS[name]), partial(_decode_bytes, BYTE_CODECS[name]))


MASK_CODECS = {
    "raw": _byte_codec("raw"),
    "png": _Codec(_encode_png, _decode_png),
    "rle": _Codec(_encode_rle, _decode_rle),
    "lz4": _byte_codec("lz4"),
    "zstd": _byte_codec("zstd"),
}


def _codec(name: str) -> _Codec:
    if name not in MASK_CODECS:
        raise UnknownNameError("mask codec", name, MASK_CODECS)
    return MASK_CODECS[name]


def _check_shape(height: int, width: int) -> None:
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise MaskCodecError(
            f"mask is {height}×{width}: send sides from 1 to {MAX_SIDE} and at most {MAX_PIXELS} pixels"
        )
