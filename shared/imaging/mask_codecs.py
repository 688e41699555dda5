"""The mask codecs. A mask is class ids, never colours, so all of them are lossless."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shared.encoding.compression import (
    Buffer,
    CompressionError,
    compress_lz4,
    compress_zstd,
    decompress_lz4,
    decompress_zstd,
)
from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.image_header import ImageHeaderError, read_header
from shared.imaging.opencv import MAX_PIXELS, MAX_SIDE, cv2

Mask = npt.NDArray[np.uint8]

_UINT8 = np.dtype(np.uint8)  # To compare with the type itself takes as long as all else here.

# Measured on a 968×608 mask: strategy RLE with filter UP is both the smallest and nearly the fastest.
_PNG_PARAMETERS = [
    *(cv2.IMWRITE_PNG_COMPRESSION, 1),
    *(cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE),
    *(cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP),
]
_RUN_BYTES = 3  # A class id and a length of two bytes.


class MaskCodecError(SkylaneError):
    """A mask that cannot be encoded as asked, or data that is not the mask it says."""


def encode(mask: Mask, codec: str) -> Buffer:
    """Encode a mask: H×W uint8 class ids, sides from 1 to 65535.

    `raw`: the ids, row by row, a flat view of the mask itself. `png`: an 8-bit grey PNG. `zstd`: a Zstandard frame of the
    raw ids, the smallest. `lz4`: an LZ4 block of them, without its size, the soonest packed. `rle`: runs of one id, none
    longer than a row: first the id of every run, a byte each, then the length of every run, two bytes each, little-endian.

    Raises:
        UnknownNameError: there is no such codec.
        MaskCodecError: the mask is no such array.
    """
    if mask.dtype != _UINT8 or mask.ndim != 2:  # noqa: PLR2004  Rows and columns.
        raise MaskCodecError(f"mask is {mask.dtype} of shape {mask.shape}: give uint8 class ids, height × width")
    height, width = mask.shape
    _check_shape(height, width)
    return _codec(codec).encode(np.ascontiguousarray(mask))


def decode(data: Buffer, codec: str, shape: tuple[int, int]) -> Mask:
    """Decode a mask whose height and width were announced as `shape`: H×W uint8, read-only for `raw`.

    Every size is compared with `shape` before memory is taken.

    Raises:
        UnknownNameError: there is no such codec.
        MaskCodecError: the data is not a mask of that shape.
    """
    decoder = _codec(codec).decode
    _check_shape(*shape)
    return decoder(data, *shape)


def _encode_raw(mask: Mask) -> Buffer:
    return mask.data.cast("B")


def _decode_raw(data: Buffer, height: int, width: int) -> Mask:
    if len(data) != height * width:
        raise MaskCodecError(f"raw mask has {len(data)} bytes, {height}×{width} needs {height * width}: send that many")
    mask = np.frombuffer(data, np.uint8).reshape(height, width)
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
        raise MaskCodecError("png mask cannot be decoded behind its header: it is damaged, encode it again")
    return np.asarray(mask)


def _encode_rle(mask: Mask) -> bytes:
    height, width = mask.shape
    starts = np.ones((height, width), np.bool_)  # A row's first pixel always starts a run, so two bytes hold a length.
    np.not_equal(mask[:, 1:], mask[:, :-1], out=starts[:, 1:])
    at = np.flatnonzero(starts)
    lengths = np.diff(at, append=mask.size).astype("<u2")
    return mask.reshape(-1)[at].tobytes() + lengths.tobytes()


def _decode_rle(data: Buffer, height: int, width: int) -> Mask:
    count, rest = divmod(len(data), _RUN_BYTES)
    if rest:
        raise MaskCodecError(f"rle mask has {len(data)} bytes: each run takes {_RUN_BYTES}, send it whole")
    ids = np.frombuffer(data, np.uint8, count)
    lengths = np.frombuffer(data, "<u2", count, offset=count)
    total = int(lengths.sum(dtype=np.uint64))
    if total != height * width:
        raise MaskCodecError(f"rle mask's runs hold {total} pixels, {height}×{width} has {height * width}")
    return np.repeat(ids, lengths).reshape(height, width)


def _encode_zstd(mask: Mask) -> bytes:
    return compress_zstd(mask.data.cast("B"))


def _decode_zstd(data: Buffer, height: int, width: int) -> Mask:
    return _decode_folded(decompress_zstd, data, height, width)


def _encode_lz4(mask: Mask) -> bytes:
    return compress_lz4(mask.data.cast("B"))


def _decode_lz4(data: Buffer, height: int, width: int) -> Mask:
    return _decode_folded(decompress_lz4, data, height, width)


def _decode_folded(unfold: Callable[[Buffer, int], bytes], data: Buffer, height: int, width: int) -> Mask:
    try:
        return _decode_raw(unfold(data, height * width), height, width)
    except CompressionError as error:
        raise MaskCodecError(f"mask of {height}×{width}: {error}") from error


class _Codec(NamedTuple):
    encode: Callable[[Mask], Buffer]
    decode: Callable[[Buffer, int, int], Mask]


MASK_CODECS = {
    "raw": _Codec(_encode_raw, _decode_raw),
    "png": _Codec(_encode_png, _decode_png),
    "rle": _Codec(_encode_rle, _decode_rle),
    "lz4": _Codec(_encode_lz4, _decode_lz4),
    "zstd": _Codec(_encode_zstd, _decode_zstd),
}


def _codec(name: str) -> _Codec:
    if name not in MASK_CODECS:
        raise UnknownNameError("mask codec", name, MASK_CODECS)
    return MASK_CODECS[name]


def _check_shape(height: int, width: int) -> None:
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise MaskCodecError(f"mask is {height}×{width}: sides go from 1 to {MAX_SIDE}, pixels to {MAX_PIXELS}")
