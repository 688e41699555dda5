"""Bounding boxes: conversion between frame and model-input coordinates, areas and intersection over union."""

from typing import Any

import numpy as np
import numpy.typing as npt

from shared.imaging.geometry import Geometry

Boxes = npt.NDArray[np.float32]  # N×4: x1, y1, x2, y2 in pixels; coordinate i is the left or top edge of pixel i.


def to_source(boxes: npt.NDArray[Any], geometry: Geometry) -> Boxes:
    """Converts boxes from the target (model input) to the source (frame) of `geometry`, and clips them to the source.

    A box that lies outside the source becomes a box of area 0.
    """
    scale, paste, crop = _transform(geometry)
    converted = (np.asarray(boxes, np.float64) - paste) / scale + crop
    limit = [geometry.source_width, geometry.source_height] * 2
    return np.clip(converted, 0, limit).astype(np.float32)


def to_target(boxes: npt.NDArray[Any], geometry: Geometry) -> Boxes:
    """Converts boxes from the source (frame) to the target (model input) of `geometry`, without clipping."""
    scale, paste, crop = _transform(geometry)
    return np.asarray((np.asarray(boxes, np.float64) - crop) * scale + paste, np.float32)


def pairwise_iou(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Returns the intersection over union, N×M, of boxes N×4 and boxes M×4."""
    intersection = intersections(first, second)
    union = areas(first)[:, np.newaxis] + areas(second) - intersection
    return np.asarray(intersection / np.maximum(union, 1e-9))


def intersections(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Returns the intersection areas, N×M, of boxes N×4 and boxes M×4, in square pixels."""
    low = np.maximum(first[:, np.newaxis, :2], second[:, :2])
    high = np.minimum(first[:, np.newaxis, 2:], second[:, 2:])
    return np.asarray(np.prod(np.maximum(high - low, 0), axis=2, dtype=np.float64))


def areas(boxes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Returns the areas of boxes N×4, in square pixels."""
    return np.asarray(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1, dtype=np.float64))


def _transform(geometry: Geometry) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns scale (target pixels per source pixel), paste offset and crop offset, each for x, y, x, y."""
    pasted = np.array([geometry.paste_width, geometry.paste_height] * 2, np.float64)
    cropped = np.array([geometry.crop_width, geometry.crop_height] * 2, np.float64)
    paste = np.array([geometry.paste_left, geometry.paste_top] * 2, np.float64)
    crop = np.array([geometry.crop_left, geometry.crop_top] * 2, np.float64)
    return pasted / cropped, paste, crop
