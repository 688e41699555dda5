"""JPEG pictures that are as they should be, decoded by libjpeg-turbo itself: the pixels that OpenCV gives, in less time.

OpenCV has the same library within it, and asks it for one row at a time. What is odd about a picture, such as bytes that
belong to nothing, is for OpenCV to judge.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
from simplejpeg import decode_jpeg

from shared.compression import Buffer

Colours = Literal["RGB", "BGR", "GRAY"]


def decode(data: Buffer, colours: Colours) -> npt.NDArray[np.uint8] | None:
    """The picture, uint8, H×W×3 or of "GRAY" H×W, as stored, whatever its EXIF says; None: let OpenCV look at it.

    Memory is taken for the size that its header tells: check that before. Other threads run meanwhile.
    """
    try:
        picture = decode_jpeg(data, colours)
    except ValueError:
        return None
    return np.asarray(picture, np.uint8).reshape(picture.shape[:2] if colours == "GRAY" else picture.shape)
