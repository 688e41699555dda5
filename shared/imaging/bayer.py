"""Conversion of images of any layout to 8-bit colour, with four demosaicing methods."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.frames import Layout, Pixels
from shared.imaging.geometry import Geometry
from shared.imaging.opencv import cv2

ColourImage = npt.NDArray[np.uint8]

_BLOCK_ROWS = 32  # Rows of 2×2 cells binned at a time, so that intermediate arrays fit the CPU cache.
_MIN_SIDE = 4  # Pixels; OpenCV returns black for smaller Bayer images.


def to_colour(pixels: Pixels, layout: Layout, target: Layout, method: str) -> ColourImage:
    """Converts an image of any layout to H×W×3 uint8 in the colour order of `target` (rgb8 or bgr8).

    Mono images are repeated in all three channels. 8-bit colour images in the target's order are returned uncopied.

    Args:
        pixels: The image, as in `shared.imaging.frames.Frame`. 16-bit values lose their lower 8 bits at the end.
        layout: The layout of `pixels`.
        target: The colour order of the output.
        method: How to demosaic a Bayer image; a key of `DEMOSAIC_METHODS`:

            - `bilinear`: each missing colour is the mean of its neighbours.
            - `edge-aware`: like bilinear, but interpolates along edges instead of across them.
            - `vng`: variable number of gradients; the best quality, many times slower, 8-bit only.
            - `binning`: each 2×2 cell becomes one pixel (red, mean of both greens, blue); the output is H/2×W/2×3.

    Raises:
        UnknownNameError: The method is unknown.
        SkylaneError: The method does not support the layout, or a Bayer image has an odd side.
    """
    assert target in (Layout.RGB8, Layout.BGR8)
    assert pixels.dtype == layout.dtype
    if method not in DEMOSAIC_METHODS:
        raise UnknownNameError("demosaic method", method, DEMOSAIC_METHODS)
    if not layout.is_bayer:
        return _reorder(pixels, layout, target)
    height, width = pixels.shape
    if height % 2 or width % 2 or not pixels.size:
        raise SkylaneError(f"{layout} image is {height}×{width}: a Bayer pattern needs even sides")
    return DEMOSAIC_METHODS[method](pixels, layout, target)


def demosaic_method(demosaic: str, layout: Layout, plan: Geometry) -> str:
    """Resolves "auto": binning, which halves the resolution, if the model's input still needs less than that."""
    if demosaic != "auto":
        return demosaic
    enough = plan.crop_width >= 2 * plan.paste_width and plan.crop_height >= 2 * plan.paste_height
    return "binning" if layout.is_bayer and enough else "bilinear"


def _reorder(pixels: Pixels, layout: Layout, target: Layout) -> ColourImage:
    if layout.channels == 1:
        return np.asarray(cv2.cvtColor(_upper_byte(pixels), cv2.COLOR_GRAY2RGB), np.uint8)
    if layout is not target:
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), np.uint8)
    return _upper_byte(pixels)


def _opencv_demosaic(variant: str, pixels: Pixels, layout: Layout, target: Layout) -> ColourImage:
    if variant == "_VNG" and pixels.dtype != np.uint8:
        raise SkylaneError(f"vng supports only 8 bits and {layout} has 16: choose edge-aware or bilinear")
    if min(pixels.shape) < _MIN_SIDE:
        raise SkylaneError(f"{layout} image is {pixels.shape[0]}×{pixels.shape[1]}: give 4×4 or more, or use binning")
    # The four-letter constants name the pattern; the older ones (BayerBG2RGB) name only its second row.
    order = "RGB" if target is Layout.RGB8 else "BGR"
    code: int = getattr(cv2, f"COLOR_Bayer{layout.bayer_pattern.upper()}2{order}{variant}")
    return _upper_byte(np.asarray(cv2.cvtColor(pixels, code)))


def _binning(pixels: Pixels, layout: Layout, target: Layout) -> ColourImage:
    height, width = pixels.shape
    binned = np.empty((height // 2, width // 2, 3), pixels.dtype)
    # Reading two neighbouring pixels as one word lets NumPy use SIMD instead of a stride of two.
    words = np.ascontiguousarray(pixels).view(f"<u{2 * pixels.itemsize}").reshape(height // 2, 2, width // 2)
    bits = 8 * pixels.itemsize
    red, blue = (layout.bayer_pattern.index(colour) for colour in "rb")
    left, right = sorted(set(range(4)) - {red, blue}, key=lambda position: position % 2)
    for start in range(0, height // 2, _BLOCK_ROWS):
        block = words[start : start + _BLOCK_ROWS]
        green = block[:, right // 2] >> bits
        green += block[:, left // 2] & ((1 << bits) - 1)
        green += 1
        green >>= 1
        planes: list[Any] = [each.astype(pixels.dtype) for each in (_pixel(block, red), green, _pixel(block, blue))]
        cv2.merge(planes if target is Layout.RGB8 else planes[::-1], binned[start : start + _BLOCK_ROWS])
    return _upper_byte(binned)


def _pixel(block: npt.NDArray[Any], position: int) -> npt.NDArray[Any]:
    """Returns words with one pixel of every cell in their lower half; `position` is 0 to 3, in reading order.

    `block`: cells × 2 rows × cells; each word holds the two pixels of a row of a cell, the left one in its lower half.
    """
    row = block[:, position // 2]
    return row >> (4 * row.itemsize) if position % 2 else row


def _upper_byte(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)


DEMOSAIC_METHODS: dict[str, Callable[[Pixels, Layout, Layout], ColourImage]] = {
    "bilinear": partial(_opencv_demosaic, ""),
    "edge-aware": partial(_opencv_demosaic, "_EA"),
    "vng": partial(_opencv_demosaic, "_VNG"),
    "binning": _binning,
}
