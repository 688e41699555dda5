"""Encoding of frames and masks for transmission, and validated decoding of untrusted data; the codecs are in `built_in_codecs`."""

from dataclasses import dataclass

import numpy as np

from shared.compression import Buffer
from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.bayer import to_colour
from shared.imaging.codec import IMAGE_CODECS, Mask, image_codec, mask_codec
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_header import read_header
from shared.imaging.opencv import MAX_PIXELS, MAX_SIDE

__all__ = [
    "IMAGE_CODECS",
    "MAX_QUALITY",
    "ImageCodecError",
    "ImageLimits",
    "decode",
    "decode_mask",
    "encode",
    "encode_mask",
    "image_size",
]

MAX_QUALITY = 100


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
    except SkylaneError as error:
        raise ImageCodecError(str(error)) from error
    return header.height, header.width, header.channels


def encode(pixels: Pixels, layout: Layout, codec: str, quality: int) -> Buffer:
    """Encodes an image without changing its layout.

    Args:
        pixels: H×W or H×W×3, uint8 or uint16, as required by `layout`.
        layout: The layout of `pixels`.
        codec: A key of `IMAGE_CODECS`.
        quality: 1 to 100; used by `jpeg` only.

    Raises:
        UnknownNameError: The codec is unknown.
        ImageCodecError: The quality is out of range, or the image is not possible with the codec.
    """
    if not 1 <= quality <= MAX_QUALITY:
        raise ImageCodecError(f"quality is {quality}: give 1 to {MAX_QUALITY}")
    assert pixels.dtype == layout.dtype
    assert pixels.size
    try:
        return image_codec(codec).encode(np.require(pixels, requirements="C"), layout, quality)
    except UnknownNameError:
        raise
    except SkylaneError as error:
        raise ImageCodecError(f"{layout} of {_by(pixels.shape)}: {error}") from error


def decode(  # noqa: PLR0917  The fields of a frame's message.
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
    decoder = image_codec(codec)
    _check_shape(layout, shape, limits)
    if target is not layout and target not in (Layout.RGB8, Layout.BGR8):
        raise ImageCodecError(f"{layout} cannot become {target}: ask for rgb8, bgr8 or {layout}")
    try:
        pixels = decoder.decode(data, layout, shape)
        return pixels if layout is target else to_colour(pixels, layout, target, "bilinear")
    except SkylaneError as error:
        raise ImageCodecError(f"{layout} of {_by(shape)}: {error}") from error


def _check_shape(layout: Layout, shape: tuple[int, ...], limits: ImageLimits) -> None:
    channels = layout.shape(1, 1)[2:]
    if len(shape) != 2 + len(channels) or tuple(shape[2:]) != channels:
        expected = ", ".join(["height", "width", *map(str, channels)])
        raise ImageCodecError(f"{layout} cannot have the shape {tuple(shape)}: send ({expected})")
    if not all(1 <= side <= MAX_SIDE for side in shape[:2]) or shape[0] * shape[1] > limits.max_pixels:
        raise ImageCodecError(
            f"image is {_by(shape)}: send sides from 1 to {MAX_SIDE} and at most {limits.max_pixels} pixels"
        )


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


_UINT8 = np.dtype(np.uint8)  # Comparing a dtype with np.uint8 itself is slow.


def encode_mask(mask: Mask, codec: str) -> Buffer:
    """Encodes a mask of H×W uint8 class ids by a codec of `MASK_CODECS`.

    Raises:
        UnknownNameError: The codec is unknown.
        SkylaneError: The mask has another dtype or shape, or is too large.
    """
    if mask.dtype != _UINT8 or mask.ndim != 2:  # Rows and columns.
        raise SkylaneError(f"mask is {mask.dtype} of shape {mask.shape}: give uint8 class ids of shape height × width")
    _check_sides(*mask.shape)
    return mask_codec(codec).encode(np.ascontiguousarray(mask))


def decode_mask(data: Buffer, codec: str, shape: tuple[int, int]) -> Mask:
    """Decodes a mask of a known shape to H×W uint8; read-only for `raw`, `lz4` and `zstd`. Checks every size before allocating memory.

    Raises:
        UnknownNameError: The codec is unknown.
        SkylaneError: The data is not a mask of this shape.
    """
    decoder = mask_codec(codec)
    _check_sides(*shape)
    try:
        return decoder.decode(data, *shape)
    except SkylaneError as error:
        raise SkylaneError(f"mask of {shape[0]}×{shape[1]}: {error}") from error


def _check_sides(height: int, width: int) -> None:
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise SkylaneError(f"mask is {height}×{width}: send sides from 1 to {MAX_SIDE} and at most {MAX_PIXELS} pixels")
