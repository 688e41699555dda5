"""JPEG pictures that are as they should be, decoded by libjpeg-turbo itself: the pixels that OpenCV gives, in less time.

OpenCV has the same library within it, and asks it for one row at a time. What is odd about a picture, such as bytes that
belong to nothing, is for OpenCV to judge.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt
from simplejpeg import decode_jpeg, decode_jpeg_header

from shared.compression import Buffer

Colours = Literal["RGB", "BGR", "GRAY"]


def decode(data: Buffer, colours: Colours, height: int, width: int) -> npt.NDArray[np.uint8] | None:
    """The picture, uint8, H×W×3 or of "GRAY" H×W, as stored, whatever its EXIF says; None: let OpenCV look at it.

    Where the decoder reads another size than was found out before, nothing is decoded, and no memory taken for it. Other
    threads run meanwhile.
    """
    try:
        if decode_jpeg_header(data)[:2] != (height, width):
            return None
        picture = decode_jpeg(data, colours)
    except ValueError:
        return None
    return np.asarray(picture, np.uint8).reshape(picture.shape[:2] if colours == "GRAY" else picture.shape)
