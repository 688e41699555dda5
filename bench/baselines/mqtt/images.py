"""Reproduction of the first system's images: whole frames in colour, resized and cropped to the model by OpenCV."""

from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.harness.comparison import BenchError
from rosbag_tools.reading.frames import BagSource
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout
from shared.imaging.opencv import cv2

ColourImage = npt.NDArray[np.uint8]  # H×W×3.


def read(bag: Path, count: int) -> list[Frame]:
    """Reads the first frames of a bag before anything is timed, as the vehicle node reads ahead.

    Raises:
        BenchError: the bag has no readable frame.
    """
    source = BagSource(bag)
    try:
        found = list(islice((item for item in source.frames() if isinstance(item, Frame)), count))
    finally:
        source.close()
    if not found:
        raise BenchError(f"{bag} has no readable frame: make a bag with 'skylane bag make'")
    return found


def to_colour_image(frame: Frame, target: Layout) -> ColourImage:
    """Converts a whole frame to colour with OpenCV's bilinear demosaicing, as the original did.

    The original swapped red and blue on one of its paths, which costs accuracy but no time; this is not reproduced.
    """
    return to_colour(frame.pixels, frame.layout, target, "bilinear")


def fit(image: ColourImage, height: int, width: int) -> ColourImage:
    """Resizes an image with cubic interpolation so that one axis fits, and crops the other: height×width×3."""
    scale = max(height / image.shape[0], width / image.shape[1])
    size = (max(width, round(image.shape[1] * scale)), max(height, round(image.shape[0] * scale)))
    resized = cv2.resize(image, size, interpolation=cv2.INTER_CUBIC)
    top, left = (resized.shape[0] - height) // 2, (resized.shape[1] - width) // 2
    return np.ascontiguousarray(resized[top : top + height, left : left + width], np.uint8)
