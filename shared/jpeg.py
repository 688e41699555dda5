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


def decode(data: Buffer, colours: Colours, height: int, width: int) -> npt.NDArray[np.uint8] | None:
    """The picture, uint8, H×W×3 or of "GRAY" H×W, as stored, whatever its EXIF says; None: let OpenCV look at it.

    Where the decoder reads a larger size than was found out before, nothing is decoded, and no memory taken for it. Other
    threads run meanwhile.
    """
    room = np.empty(height * width * (1 if colours == "GRAY" else 3), np.uint8)
    try:
        picture = decode_jpeg(data, colours, buffer=room)
    except ValueError:
        return None
    return (
        room.reshape(picture.shape[:2] if colours == "GRAY" else picture.shape) if picture.size == room.size else None
    )
