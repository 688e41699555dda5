"""Image files of JPEG and PNG by OpenCV; the header of an untrusted file is checked before OpenCV sees it."""

from typing import Any

import numpy as np

from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_header import read_header
from shared.imaging.opencv import cv2


def encode_file(suffix: str, pixels: Pixels, layout: Layout, parameters: list[int]) -> Buffer:
    """Encodes an image as a file; `parameters` are those of `cv2.imencode`."""
    if layout is Layout.RGB8:
        pixels = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), np.uint8)  # cv2.imencode expects BGR.
    try:
        done, data = cv2.imencode(suffix, pixels, parameters)
    except cv2.error as error:
        raise SkylaneError(f"it cannot be written as {suffix}: {error.err}") from error
    assert done
    return data.data.cast("B")


def decode_file(kind: str, data: Buffer, layout: Layout, shape: tuple[int, ...]) -> Pixels:
    """Decodes a file of a `kind`, "jpeg" or "png", that must have the given layout and shape.

    Raises:
        SkylaneError: The file is of another kind or size, or damaged.
    """
    header = read_header(data)
    declared = (kind, *shape[:2], layout.channels, layout.dtype.itemsize * 8)
    if (header.kind, header.height, header.width, header.channels, header.bits) != declared:
        raise SkylaneError(
            f"{header.kind} header declares {header.height}×{header.width}, {header.channels} × {header.bits} bits,"
            f" the message {kind}, {shape[0]}×{shape[1]}, {layout.channels} × {8 * layout.dtype.itemsize} bits: they must agree"
        )
    flags = cv2.IMREAD_UNCHANGED
    if layout.channels > 1:  # A rotation by EXIF would change the shape.
        order = cv2.IMREAD_COLOR_RGB if layout is Layout.RGB8 else cv2.IMREAD_COLOR_BGR
        flags = cv2.IMREAD_IGNORE_ORIENTATION | order
    try:
        pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise SkylaneError(f"{kind} cannot be decoded: {error.err}: encode it again") from error
    if pixels is None or pixels.shape != tuple(shape) or pixels.dtype != layout.dtype:
        raise SkylaneError(f"{kind} is damaged after its header: encode it again")
    return np.asarray(pixels)
