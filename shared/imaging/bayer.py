"""From what a sensor counted to 8-bit colour: four ways to fill in what a Bayer pattern left out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.frames import Layout, Pixels
from shared.imaging.opencv import cv2

Colour = npt.NDArray[np.uint8]

_NEIGHBOURHOOD = 4  # The smallest side that has a pixel with all its neighbours.
_BAND_ROWS = 32  # Of cells, binned at a time: what a band needs on the way stays in the processor's cache.


class DemosaicError(SkylaneError):
    """A picture that the chosen method cannot turn into colour."""


def to_colour(pixels: Pixels, layout: Layout, target: Layout, method: str) -> Colour:
    """Turn a picture of any layout into H×W×3 uint8 in the order of `target` (rgb8 or bgr8).

    `pixels`: as `shared.imaging.frames.Frame` says; 16 bits become 8 by dropping the lower 8 after demosaicing. `method`, used
    for Bayer layouts only, is a name in `DEMOSAIC_METHODS`:

    - `bilinear`: each missing colour is the mean of its neighbours.
    - `edge-aware`: as bilinear, but along an edge rather than across it.
    - `vng`: by variable number of gradients; the best picture, many times slower, 8 bit only.
    - `binning`: each 2×2 cell becomes one pixel, red, the mean of both greens, blue: H/2×W/2×3, and no colour is made up.

    Mono is repeated three times; colour in the target's order is returned as it is, without a copy.

    Raises:
        UnknownNameError: there is no such method.
        DemosaicError: the method cannot read the layout, or a Bayer picture has an odd side.
    """
    assert target in (Layout.RGB8, Layout.BGR8)
    assert pixels.dtype == layout.dtype
    if method not in DEMOSAIC_METHODS:
        raise UnknownNameError("demosaic method", method, DEMOSAIC_METHODS)
    if not layout.is_bayer:
        return _reordered(pixels, layout, target)
    height, width = pixels.shape
    if height % 2 or width % 2 or not pixels.size:
        raise DemosaicError(f"{layout} picture is {height}×{width}: a Bayer picture has even sides, crop it by one")
    return DEMOSAIC_METHODS[method](pixels, layout, target)


def _reordered(pixels: Pixels, layout: Layout, target: Layout) -> Colour:
    if layout.channels == 1:
        return np.asarray(cv2.cvtColor(_upper_byte(pixels), cv2.COLOR_GRAY2RGB), np.uint8)
    if layout is not target:
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), np.uint8)
    return _upper_byte(pixels)


def _bilinear(pixels: Pixels, layout: Layout, target: Layout) -> Colour:
    return _demosaiced(pixels, layout, target, "")


def _edge_aware(pixels: Pixels, layout: Layout, target: Layout) -> Colour:
    return _demosaiced(pixels, layout, target, "_EA")


def _vng(pixels: Pixels, layout: Layout, target: Layout) -> Colour:
    if pixels.dtype != np.uint8:
        raise DemosaicError(f"vng reads 8 bits a pixel and {layout} has 16: choose edge-aware or bilinear")
    return _demosaiced(pixels, layout, target, "_VNG")


def _demosaiced(pixels: Pixels, layout: Layout, target: Layout, variant: str) -> Colour:
    if min(pixels.shape) < _NEIGHBOURHOOD:  # OpenCV answers these in black.
        raise DemosaicError(
            f"{layout} picture is {pixels.shape[0]}×{pixels.shape[1]}: give 4×4 or more, or use binning"
        )
    # OpenCV's older names (BayerBG2RGB) give the second row's pair; the spelling with four letters is the pattern's.
    order = "RGB" if target is Layout.RGB8 else "BGR"
    code: int = getattr(cv2, f"COLOR_Bayer{layout.bayer_pattern.upper()}2{order}{variant}")
    return _upper_byte(np.asarray(cv2.cvtColor(pixels, code)))


def _binning(pixels: Pixels, layout: Layout, target: Layout) -> Colour:
    height, width = pixels.shape
    binned = np.empty((height // 2, width // 2, 3), pixels.dtype)
    # Two pixels of a row are read as one word: NumPy then works on whole registers, not on every second byte.
    words = np.ascontiguousarray(pixels).view(f"<u{2 * pixels.itemsize}").reshape(height // 2, 2, width // 2)
    bits = 8 * pixels.itemsize
    red, blue = (layout.bayer_pattern.index(colour) for colour in "rb")
    left, right = sorted((place for place in range(4) if place not in (red, blue)), key=lambda place: place % 2)
    for start in range(0, height // 2, _BAND_ROWS):
        band = words[start : start + _BAND_ROWS]
        green = band[:, right // 2] >> bits
        green += band[:, left // 2] & ((1 << bits) - 1)
        green += 1
        green >>= 1
        planes: list[Any] = [each.astype(pixels.dtype) for each in (_lowered(band, red), green, _lowered(band, blue))]
        cv2.merge(planes if target is Layout.RGB8 else planes[::-1], binned[start : start + _BAND_ROWS])
    return _upper_byte(binned)


def _lowered(band: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
    """The words whose lower half is the pixel at a place (0 to 3, in reading order) of every cell.

    `band`: cells × 2 rows × cells, each word the two pixels of a cell's row, the left one in its lower half.
    """
    row = band[:, place // 2]
    return row >> (4 * row.itemsize) if place % 2 else row


def _upper_byte(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)


DEMOSAIC_METHODS: dict[str, Callable[[Pixels, Layout, Layout], Colour]] = {
    "bilinear": _bilinear,
    "edge-aware": _edge_aware,
    "vng": _vng,
    "binning": _binning,
}
