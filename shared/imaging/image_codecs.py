"""The image codecs: how a frame's pixels travel, and how they are read back without trusting what came."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
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
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_header import ImageHeaderError, read_header
from shared.imaging.opencv import MAX_SIDE, cv2

MAX_QUALITY = 100

_JPEG_SIDE = 65_500  # Pixels, that libjpeg-turbo writes.
_HALF_COLOUR = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420

# Measured on a noisy 968×608 picture: half the time of OpenCV's own choice at level 1, and 9 % smaller.
_PNG_PARAMETERS = [
    *(cv2.IMWRITE_PNG_COMPRESSION, 1),
    *(cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE),
    *(cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_PAETH),
]


class ImageCodecError(SkylaneError):
    """A picture that cannot be encoded as asked, or data that is not the picture it says."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """The largest picture that is decoded."""

    max_pixels: int = 1 << 25  # Height × width.
    max_bytes: int = 1 << 27  # Of the data, encoded.


def image_size(data: Buffer) -> tuple[int, int, int]:
    """Height, width and channels (alpha included) of a JPEG or PNG, from its header alone.

    Raises:
        ImageCodecError: it is neither, is cut off, or is of a kind that is not decoded here.
    """
    try:
        header = read_header(data)
    except ImageHeaderError as error:
        raise ImageCodecError(str(error)) from error
    return header.height, header.width, header.channels


def encode(pixels: Pixels, layout: Layout, codec: str, quality: int) -> Buffer:
    """Encode a picture in the layout given: bytes, or a flat view of bytes.

    `pixels`: H×W or H×W×3, uint8 or uint16, as `layout` says. `quality`: 1 to 100, read by `jpeg` only. `raw` (a view
    of the pixels themselves), `lz4` (one block) and `zstd` (one frame) carry the numbers row by row, 16 bits
    little-endian; `png` and `jpeg` are ordinary pictures. All but `jpeg` are lossless; `jpeg` halves colour's
    resolution (4:2:0), as a camera would.

    Raises:
        UnknownNameError: there is no such codec.
        ImageCodecError: `jpeg` of a Bayer or 16-bit picture, or a quality that is none.
    """
    if not 1 <= quality <= MAX_QUALITY:
        raise ImageCodecError(f"quality {quality} is none: give 1 to {MAX_QUALITY}")
    assert pixels.dtype == layout.dtype
    assert pixels.size
    return _codec(codec).encode(np.require(pixels, requirements="C"), layout, quality)


def decode(  # noqa: PLR0917  What was announced, in its order, then what is allowed and wanted.
    data: Buffer, codec: str, layout: Layout, shape: tuple[int, ...], limits: ImageLimits, target: Layout
) -> Pixels:
    """Decode a picture whose layout and shape were announced, into the layout `target`.

    `target` is rgb8, bgr8 or `layout` itself; a Bayer picture is demosaiced bilinearly on its way to colour. Returns
    an array of `target.shape(height, width)`; for `raw` in its own layout a read-only view of `data`, without a copy.
    Every size is compared with `shape` and `limits` before memory is taken.

    Raises:
        UnknownNameError: there is no such codec.
        ImageCodecError: the data is too large, or is not a picture of that layout and shape.
    """
    if len(data) > limits.max_bytes:
        raise ImageCodecError(f"picture has {len(data)} bytes, more than {limits.max_bytes}: send a smaller one")
    decoder = _codec(codec).decode
    _check_shape(layout, shape, limits)
    if target is not layout and target not in (Layout.RGB8, Layout.BGR8):
        raise ImageCodecError(f"{layout} cannot become {target}: ask for rgb8, bgr8 or {layout}")
    return decoder(data, layout, shape, target)


def _encode_raw(pixels: Pixels, _layout: Layout, _quality: int) -> Buffer:
    return _little_endian(pixels).data.cast("B")


def _decode_raw(data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout) -> Pixels:
    size = _size(layout, shape)
    if len(data) != size:
        raise ImageCodecError(f"picture has {len(data)} bytes, {layout} of {_by(shape)} needs {size}: send that many")
    pixels: Any = np.frombuffer(data, layout.dtype.newbyteorder("<")).reshape(shape)
    pixels.flags.writeable = False
    return _converted(pixels.astype(layout.dtype, copy=False), layout, target)


def _encode_lz4(pixels: Pixels, _layout: Layout, _quality: int) -> Buffer:
    return compress_lz4(_little_endian(pixels).data.cast("B"))


def _decode_lz4(data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout) -> Pixels:
    return _decode_folded(decompress_lz4, data, layout, shape, target)


def _encode_zstd(pixels: Pixels, _layout: Layout, _quality: int) -> Buffer:
    return compress_zstd(_little_endian(pixels).data.cast("B"))


def _decode_zstd(data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout) -> Pixels:
    return _decode_folded(decompress_zstd, data, layout, shape, target)


def _decode_folded(
    unfold: Callable[[Buffer, int], bytes], data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout
) -> Pixels:
    try:
        unfolded = unfold(data, _size(layout, shape))
    except CompressionError as error:
        raise ImageCodecError(f"{layout} of {_by(shape)}: {error}") from error
    return _decode_raw(unfolded, layout, shape, target)


def _encode_png(pixels: Pixels, layout: Layout, _quality: int) -> Buffer:
    return _opencv_encode(".png", pixels, layout, _PNG_PARAMETERS)


def _decode_png(data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout) -> Pixels:
    return _opencv_decode("png", data, layout, shape, target)


def _encode_jpeg(pixels: Pixels, layout: Layout, quality: int) -> Buffer:
    _check_jpeg(layout)
    if max(pixels.shape[:2]) > _JPEG_SIDE:
        raise ImageCodecError(f"{layout} of {_by(pixels.shape)} is too large for jpeg, whose sides end at {_JPEG_SIDE}")
    parameters = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, _HALF_COLOUR]
    return _opencv_encode(".jpg", pixels, layout, parameters)


def _decode_jpeg(data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout) -> Pixels:
    _check_jpeg(layout)
    return _opencv_decode("jpeg", data, layout, shape, target)


def _opencv_encode(suffix: str, pixels: Pixels, layout: Layout, parameters: list[int]) -> Buffer:
    if layout is Layout.RGB8:
        pixels = to_colour(pixels, layout, Layout.BGR8, "bilinear")  # OpenCV writes a file's colours from BGR.
    try:
        done, data = cv2.imencode(suffix, pixels, parameters)
    except cv2.error as error:
        raise ImageCodecError(f"{layout} of {_by(pixels.shape)} cannot be written as {suffix}: {error.err}") from error
    assert done
    return data.data.cast("B")


def _opencv_decode(kind: str, data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout) -> Pixels:
    try:
        header = read_header(data)
    except ImageHeaderError as error:
        raise ImageCodecError(str(error)) from error
    declared = (kind, *shape[:2], layout.channels, layout.dtype.itemsize * 8)
    if (header.kind, header.height, header.width, header.channels, header.bits) != declared:
        raise ImageCodecError(
            f"{header.kind} header says {header.height}×{header.width}, {header.channels} × {header.bits} bits;"
            f" announced were {kind}, {layout} of {_by(shape)}: they must agree"
        )
    if layout.channels == 3:  # noqa: PLR2004  Red, green, blue.
        layout = target
    try:
        pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), _flags(layout))
    except cv2.error as error:
        raise ImageCodecError(f"{kind} picture cannot be decoded: {error.err}: encode it again") from error
    if pixels is None or pixels.shape != tuple(shape) or pixels.dtype != layout.dtype:
        raise ImageCodecError(f"{kind} picture cannot be decoded behind its header: it is damaged, encode it again")
    return _converted(pixels, layout, target)


def _flags(layout: Layout) -> int:
    """OpenCV's, for a picture that is to come in a layout; a turned one would no longer have the announced shape."""
    if layout.channels == 1:
        return cv2.IMREAD_UNCHANGED
    return cv2.IMREAD_IGNORE_ORIENTATION | (cv2.IMREAD_COLOR_RGB if layout is Layout.RGB8 else cv2.IMREAD_COLOR_BGR)


class _Codec(NamedTuple):
    encode: Callable[[Pixels, Layout, int], Buffer]
    decode: Callable[[Buffer, Layout, tuple[int, ...], Layout], Pixels]


IMAGE_CODECS = {
    "raw": _Codec(_encode_raw, _decode_raw),
    "jpeg": _Codec(_encode_jpeg, _decode_jpeg),
    "png": _Codec(_encode_png, _decode_png),
    "lz4": _Codec(_encode_lz4, _decode_lz4),
    "zstd": _Codec(_encode_zstd, _decode_zstd),
}


def _codec(name: str) -> _Codec:
    if name not in IMAGE_CODECS:
        raise UnknownNameError("image codec", name, IMAGE_CODECS)
    return IMAGE_CODECS[name]


def _check_shape(layout: Layout, shape: tuple[int, ...], limits: ImageLimits) -> None:
    channels = layout.shape(1, 1)[2:]
    if len(shape) != 2 + len(channels) or tuple(shape[2:]) != channels:
        wanted = ", ".join(["height", "width", *map(str, channels)])
        raise ImageCodecError(f"{layout} cannot have the shape {tuple(shape)}: send ({wanted})")
    if not all(1 <= side <= MAX_SIDE for side in shape[:2]) or shape[0] * shape[1] > limits.max_pixels:
        raise ImageCodecError(
            f"picture is {_by(shape)}: send sides from 1 to {MAX_SIDE} and at most {limits.max_pixels} pixels"
        )


def _check_jpeg(layout: Layout) -> None:
    if layout.is_bayer:
        raise ImageCodecError(f"jpeg would blur {layout}'s pattern into false colours: choose png, lz4, zstd or raw")
    if layout.dtype != np.uint8:
        raise ImageCodecError(f"jpeg holds 8 bits and {layout} has 16: choose png, lz4, zstd or raw")


def _converted(pixels: Pixels, layout: Layout, target: Layout) -> Pixels:
    if layout is target:
        return pixels
    try:
        return to_colour(pixels, layout, target, "bilinear")
    except SkylaneError as error:
        raise ImageCodecError(str(error)) from error


def _little_endian(pixels: Pixels) -> npt.NDArray[Any]:
    return pixels.astype(pixels.dtype.newbyteorder("<"), copy=False)


def _size(layout: Layout, shape: tuple[int, ...]) -> int:
    return prod(shape) * layout.dtype.itemsize


def _by(shape: tuple[int | str, ...]) -> str:
    return "×".join(map(str, shape))
