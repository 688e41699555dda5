"""Boxes: how they go from a model's input back onto the frame that it was made of, and the other way round."""

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.imaging.geometry import Geometry

Boxes = npt.NDArray[np.float32]  # N×4: x1, y1, x2, y2 in pixels; a pixel's left and top edge have its number.


def to_source(boxes: npt.NDArray[Any], geometry: Geometry) -> Boxes:
    """Boxes of the target, as they lie on the source: the inverse of what `geometry.apply` did to the picture.

    What reaches over the frame's edge is cut off there; a box all outside it is left without area.
    """
    scale, paste, crop = _sides(geometry)
    laid = (np.asarray(boxes, np.float64) - paste) / scale + crop
    limit = [geometry.source_width, geometry.source_height] * 2
    return np.clip(laid, 0, limit).astype(np.float32)


def apply(boxes: npt.NDArray[Any], geometry: Geometry) -> Boxes:
    """Boxes of the source, as they lie on the target that `geometry.apply` makes of it; nothing is cut off."""
    scale, paste, crop = _sides(geometry)
    return np.asarray((np.asarray(boxes, np.float64) - crop) * scale + paste, np.float32)


def overlap(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The intersection over union of boxes N×4 with boxes M×4, N×M."""
    both = intersections(one, other)
    either = areas(one)[:, np.newaxis] + areas(other) - both
    return np.asarray(both / np.maximum(either, 1e-9))


def intersections(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The area that boxes N×4 share with boxes M×4, N×M, in pixels."""
    low = np.maximum(one[:, np.newaxis, :2], other[:, :2])
    high = np.minimum(one[:, np.newaxis, 2:], other[:, 2:])
    return np.asarray(np.prod(np.maximum(high - low, 0), axis=2, dtype=np.float64))


def areas(boxes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The area of each of boxes N×4, in pixels."""
    return np.asarray(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1, dtype=np.float64))


def _sides(geometry: Geometry) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Target pixels a source pixel, where the target's picture begins, where the source's crop does; for x, y, x, y."""
    pasted = np.array([geometry.paste_width, geometry.paste_height] * 2, np.float64)
    cropped = np.array([geometry.crop_width, geometry.crop_height] * 2, np.float64)
    paste = np.array([geometry.paste_left, geometry.paste_top] * 2, np.float64)
    crop = np.array([geometry.crop_left, geometry.crop_top] * 2, np.float64)
    return pasted / cropped, paste, crop
