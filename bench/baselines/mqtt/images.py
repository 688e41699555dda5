"""Pictures as the first system made them (a reproduction): whole frames in colour, cut to the model by OpenCV."""

from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.load.playback import BenchError
from rosbag_tools.reading.frames import BagSource
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout
from shared.imaging.opencv import cv2

Picture = npt.NDArray[np.uint8]  # H×W×3.


def read(bag: Path, count: int) -> list[Frame]:
    """The first frames of a bag. They are read before anything is timed, as the vehicle node reads ahead.

    Raises:
        BenchError: it holds none that can be read.
    """
    source = BagSource(bag)
    try:
        found = list(islice((item for item in source.frames() if isinstance(item, Frame)), count))
    finally:
        source.close()
    if not found:
        raise BenchError(f"{bag} holds no frame that can be read: make one with 'skylane bag make'")
    return found


def in_colour(frame: Frame, target: Layout) -> Picture:
    """All of a frame in colour: OpenCV's bilinear demosaicing, as the original did it, by the right constant.

    The original took red for blue on one of its paths, which costs accuracy and no time: that is not reproduced.
    """
    return to_colour(frame.pixels, frame.layout, target, "bilinear")


def fitted(picture: Picture, height: int, width: int) -> Picture:
    """One axis resized to fit, by cubic interpolation, and the middle of the other cut out: height×width×3."""
    scale = max(height / picture.shape[0], width / picture.shape[1])
    size = (max(width, round(picture.shape[1] * scale)), max(height, round(picture.shape[0] * scale)))
    resized = cv2.resize(picture, size, interpolation=cv2.INTER_CUBIC)
    top, left = (resized.shape[0] - height) // 2, (resized.shape[1] - width) // 2
    return np.ascontiguousarray(resized[top : top + height, left : left + width], np.uint8)
