"""Camera frames and their pixel layouts."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

_DEPTH_NAME = re.compile(
    "(^|/|(?<!_to)_)((aligned_?|compressed)?depth(image|map)?(?!_?cam)|disparity|confidence)(?![a-z])|(^|/)range(_image)?(/|$)",
    re.IGNORECASE,
)

Pixels = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


class Layout(StrEnum):
    """The pixel layout of an image. A Bayer layout is named after its 2×2 pattern in reading order."""

    BGR8 = "bgr8"
    RGB8 = "rgb8"
    MONO8 = "mono8"
    MONO16 = "mono16"
    BAYER_RGGB8 = "bayer_rggb8"
    BAYER_BGGR8 = "bayer_bggr8"
    BAYER_GBRG8 = "bayer_gbrg8"
    BAYER_GRBG8 = "bayer_grbg8"
    BAYER_RGGB16 = "bayer_rggb16"
    BAYER_BGGR16 = "bayer_bggr16"
    BAYER_GBRG16 = "bayer_gbrg16"
    BAYER_GRBG16 = "bayer_grbg16"

    @property
    def is_bayer(self) -> bool:
        """True if each pixel holds one colour of a 2×2 pattern."""
        return self.startswith("bayer_")

    @property
    def bayer_pattern(self) -> str:
        """The 2×2 pattern in reading order, such as "rggb"; only for Bayer layouts."""
        return self[6:10]

    @property
    def channels(self) -> int:
        """Values per pixel: 3 for colour, 1 for mono and Bayer."""
        return 3 if self in (Layout.BGR8, Layout.RGB8) else 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8 or uint16."""
        return np.dtype(self.dtype_name)

    @property
    def dtype_name(self) -> str:
        """The name of the dtype."""
        return "uint16" if self.endswith("16") else "uint8"

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Returns the array shape of an image: H×W×3 for colour, H×W otherwise."""
        return (height, width) if self.channels == 1 else (height, width, self.channels)


def names_depth(camera: str) -> bool:
    """Returns whether the name of a topic or folder says that its images hold distances, as `/camera/depth/image_raw` does."""
    return _DEPTH_NAME.search(camera) is not None


@dataclass(frozen=True, slots=True)
class Frame:
    """One image from a source."""

    pixels: Pixels  # H×W or H×W×3, C-contiguous; 16-bit data uses the full range 0..65535.
    layout: Layout
    camera: str  # The ROS topic, or the name the source gives it.
    index: int  # Position in the source, from 0.
    stamp_ns: int  # Timestamp of the sensor, or of the source if the sensor set none.
    source_ns: int  # Recording time, used to pace a replay. Never decreases within a source.
    read_ns: int  # Duration of reading and decoding.


@dataclass(frozen=True, slots=True)
class UnreadableFrame:
    """A frame of a source that cannot be decoded. It is counted like any other frame."""

    camera: str
    index: int
    stamp_ns: int
    source_ns: int
    read_ns: int
    reason: str
