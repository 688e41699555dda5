"""The image codecs: encoding of frames for transmission, and validated decoding of untrusted data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from shared.encoding.compression import BYTE_CODECS, Buffer, ByteCodec, CompressionError
from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_header import ImageHeaderError, read_header
from shared.imaging.opencv import MAX_SIDE, cv2

MAX_QUALITY = 100

_JPEG_SIDE = 65_500  # Largest side that libjpeg-turbo writes, pixels.
_SUBSAMPLING_4_2_0 = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420

# On a noisy 968×608 image, these take half the time of OpenCV's defaults at level 1, and the file is 9 % smaller.
_PNG_PARAMETERS = [
    *(cv2.IMWRITE_PNG_COMPRESSION, 1),
    *(cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE),
    *(cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_PAETH),
]


class ImageCodecError(SkylaneError):
    """An image cannot be encoded as requested, or encoded data is not the expected image."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Limits of an image to decode."""

    max_pixels: int = 1 << 25  # Height × width.
    max_bytes: int = 1 << 27  # Size of the encoded data.


def image_size(data: Buffer) -> tuple[int, int, int]:
    """Returns height, width and channels (including alpha) of a JPEG or PNG, reading only its header.

    Raises:
        ImageCodecError: The data is neither, is truncated, or is of an unsupported kind.
    """
    try:
        header = read_header(data)
    except ImageHeaderError as error:
        raise ImageCodecError(str(error)) from error
    return header.height, header.width, header.channels


def encode(pixels: Pixels, layout: Layout, codec: str, quality: int) -> Buffer:
    """Encodes an image without changing its layout.

    `raw` (a view of the pixels), `lz4` (one block) and `zstd` (one frame) hold the values row by row, 16-bit values
    little-endian. `png` and `jpeg` are files of these formats. All are lossless except `jpeg`, which uses 4:2:0 colour
    subsampling.

    Args:
        pixels: H×W or H×W×3, uint8 or uint16, as required by `layout`.
        layout: The layout of `pixels`.
        codec: A key of `IMAGE_CODECS`.
        quality: 1 to 100; used by `jpeg` only.

    Raises:
        UnknownNameError: The codec is unknown.
        ImageCodecError: The quality is out of range, or the image is not possible with `jpeg` (Bayer, 16-bit, too large).
    """
    if not 1 <= quality <= MAX_QUALITY:
        raise ImageCodecError(f"quality is {quality}: give 1 to {MAX_QUALITY}")
    assert pixels.dtype == layout.dtype
    assert pixels.size
    return _codec(codec).encode(np.require(pixels, requirements="C"), layout, quality)


def decode(  # noqa: PLR0917
    data: Buffer, codec: str, layout: Layout, shape: tuple[int, ...], limits: ImageLimits, target: Layout
) -> Pixels:
    """Decodes an image of a known layout and shape. Checks every size before allocating memory.

    Args:
        data: The encoded image.
        codec: A key of `IMAGE_CODECS`.
        layout: The layout of the encoded image.
        shape: H×W or H×W×3.
        limits: The largest accepted image.
        target: The layout of the output: rgb8, bgr8 or `layout`. Bayer images are demosaiced bilinearly.

    Returns:
        An array of `target.shape(height, width)`. With `raw` and `target is layout`, it is a read-only view of `data`.

    Raises:
        UnknownNameError: The codec is unknown.
        ImageCodecError: The data is too large, or is not an image of this layout and shape.
    """
    if len(data) > limits.max_bytes:
        raise ImageCodecError(f"image has {len(data)} bytes, more than {limits.max_bytes}: send a smaller one")
    decoder = _codec(codec).decode
    _check_shape(layout, shape, limits)
    if target is not layout and target not in (Layout.RGB8, Layout.BGR8):
        raise ImageCodecError(f"{layout} cannot become {target}: ask for rgb8, bgr8 or {layout}")
    return decoder(data, layout, shape, target)


def _encode_bytes(codec: ByteCodec, pixels: Pixels, _layout: Layout, _quality: int) -> Buffer:
    return codec.compress(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False).data.cast("B"))


def _decode_bytes(codec: ByteCodec, data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout) -> Pixels:
    try:
        decompressed = codec.decompress(data, prod(shape) * layout.dtype.itemsize)
    except CompressionError as error:
        raise ImageCodecError(f"{layout} of {_by(shape)}: {error}") from error
    pixels: Any = np.frombuffer(decompressed, layout.dtype.newbyteorder("<")).reshape(shape)
    pixels.flags.writeable = False
    return _convert(pixels.astype(layout.dtype, copy=False), layout, target)


def _encode_png(pixels: Pixels, layout: Layout, _quality: int) -> Buffer:
    return _opencv_encode(".png", pixels, layout, _PNG_PARAMETERS)


def _encode_jpeg(pixels: Pixels, layout: Layout, quality: int) -> Buffer:
    _check_jpeg(layout)
    if max(pixels.shape[:2]) > _JPEG_SIDE:
        raise ImageCodecError(
            f"{layout} of {_by(pixels.shape)} is too large for jpeg: its sides may have {_JPEG_SIDE} pixels at most"
        )
    parameters = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, _SUBSAMPLING_4_2_0]
    return _opencv_encode(".jpg", pixels, layout, parameters)


def _decode_jpeg(data: Buffer, layout: Layout, shape: tuple[int, ...], target: Layout) -> Pixels:
    _check_jpeg(layout)
    return _opencv_decode("jpeg", data, layout, shape, target)


def _opencv_encode(suffix: str, pixels: Pixels, layout: Layout, parameters: list[int]) -> Buffer:
    if layout is Layout.RGB8:
        pixels = to_colour(pixels, layout, Layout.BGR8, "bilinear")  # cv2.imencode expects BGR.
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
            f"{header.kind} header declares {header.height}×{header.width}, {header.channels} × {header.bits} bits,"
            f" expected {kind}, {layout} of {_by(shape)}: they must agree"
        )
    if layout.channels == 3:  # noqa: PLR2004  Red, green, blue.
        layout = target
    try:
        pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), _flags(layout))
    except cv2.error as error:
        raise ImageCodecError(f"{kind} image cannot be decoded: {error.err}: encode it again") from error
    if pixels is None or pixels.shape != tuple(shape) or pixels.dtype != layout.dtype:
        raise ImageCodecError(f"{kind} image is damaged after its header: encode it again")
    return _convert(pixels, layout, target)


def _flags(layout: Layout) -> int:
    """Returns the flags of `cv2.imdecode`. EXIF rotation is ignored because it would change the shape."""
    if layout.channels == 1:
        return cv2.IMREAD_UNCHANGED
    return cv2.IMREAD_IGNORE_ORIENTATION | (cv2.IMREAD_COLOR_RGB if layout is Layout.RGB8 else cv2.IMREAD_COLOR_BGR)


class _Codec(NamedTuple):
    encode: Callable[[Pixels, Layout, int], Buffer]
    decode: Callable[[Buffer, Layout, tuple[int, ...], Layout], Pixels]


def _byte_codec(name: str) -> _Codec:
    return _Codec(partial(_encode_bytes, BYTE_CODECS[name]), partial(_decode_bytes, BYTE_CODECS[name]))


IMAGE_CODECS = {
    "raw": _byte_codec("raw"),
    "jpeg": _Codec(_encode_jpeg, _decode_jpeg),
    "png": _Codec(_encode_png, partial(_opencv_decode, "png")),
    "lz4": _byte_codec("lz4"),
    "zstd": _byte_codec("zstd"),
}


def _codec(name: str) -> _Codec:
    if name not in IMAGE_CODECS:
        raise UnknownNameError("image codec", name, IMAGE_CODECS)
    return IMAGE_CODECS[name]


def _check_shape(layout: Layout, shape: tuple[int, ...], limits: ImageLimits) -> None:
    channels = layout.shape(1, 1)[2:]
    if len(shape) != 2 + len(channels) or tuple(shape[2:]) != channels:
        expected = ", ".join(["height", "width", *map(str, channels)])
        raise ImageCodecError(f"{layout} cannot have the shape {tuple(shape)}: send ({expected})")
    if not all(1 <= side <= MAX_SIDE for side in shape[:2]) or shape[0] * shape[1] > limits.max_pixels:
        raise ImageCodecError(
            f"image is {_by(shape)}: send sides from 1 to {MAX_SIDE} and at most {limits.max_pixels} pixels"
        )


def _check_jpeg(layout: Layout) -> None:
    if layout.is_bayer:
        raise ImageCodecError(f"jpeg would mix the colours of the {layout} pattern: choose png, lz4, zstd or raw")
    if layout.dtype != np.uint8:
        raise ImageCodecError(f"jpeg supports only 8 bits and {layout} has 16: choose png, lz4, zstd or raw")


def _convert(pixels: Pixels, layout: Layout, target: Layout) -> Pixels:
    if layout is target:
        return pixels
    try:
        return to_colour(pixels, layout, target, "bilinear")
    except SkylaneError as error:
        raise ImageCodecError(str(error)) from error


def _by(shape: tuple[int | str, ...]) -> str:
    return "×".join(map(str, shape))
