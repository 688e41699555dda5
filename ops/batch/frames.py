"""The values that the steps of a batch exchange: prepared frames, their results, and the end of a bag."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.imaging.geometry import Geometry


@dataclass(frozen=True, slots=True)
class PreparedFrame:
    """A decoded frame, as the input of the model."""

    camera: str  # The topic.
    index: int  # Position among the frames of the bag, from 0.
    stamp_ns: int
    source_ns: int  # Recording time.
    image: npt.NDArray[np.uint8]  # H×W×3, C-contiguous, of the model's size and in its colour order.
    geometry: Geometry
    total: int | None  # Frames of the bag by its index; None if only a part is read.


@dataclass(frozen=True, slots=True)
class SegmentedFrame:
    """The result of a frame."""

    camera: str
    index: int
    stamp_ns: int
    source_ns: int
    geometry: Geometry
    mask: bytes  # Encoded in the mask format of the settings.
    counts: tuple[int, ...]  # Pixels of each label of the model, in the mask of the model's size.
    picture: bytes = b""  # The frame with its mask drawn on it, as JPEG; empty for most frames.


@dataclass(frozen=True, slots=True)
class BagEnd:
    """Follows the last frame of a bag."""

    sha256: str = ""  # Hash of the bag, see `library.content_hash`; empty after an error.
    unreadable: int = 0  # Frames that could not be decoded.
    first_unreadable: str = ""  # The first of them, with the reason.
    error: str = ""  # The reason if the bag fails as a whole; otherwise empty.
    false_claims: tuple[str, ...] = ()  # Wrong statements of the bag about itself, see `Bag`.
    notes: tuple[str, ...] = ()  # Decisions that the user did not make, such as topics that are left out.
