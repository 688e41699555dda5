"""Masks as pictures (a reproduction of the first system's way back): a palette, JPEG, and what is left of the classes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.imaging.labels import Labels
from shared.imaging.mask_codecs import Mask
from shared.imaging.opencv import cv2

Palette = npt.NDArray[np.uint8]  # 256×3, in OpenCV's order: blue, green, red.
_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class Kept:
    """The shares of a mask's pixels, 0 to 1, that came back as they were."""

    exact: float  # Their colour is exactly their class's.
    nearest: float  # The class whose colour is nearest to theirs is the right one.


def palette_of(labels: Labels) -> Palette:
    """A colour for each of 256 class ids; black for those without a label."""
    table = np.zeros((_ENTRIES, 3), np.uint8)
    colours = np.array(labels.colours[:_ENTRIES], np.uint8)
    table[: len(colours)] = colours[:, ::-1]
    return table


def painted(mask: Mask, palette: Palette) -> bytes:
    """A mask as a JPEG picture of its classes' colours, at OpenCV's default quality."""
    done, data = cv2.imencode(".jpg", palette[mask])
    assert done
    return data.tobytes()


def kept(jpeg: bytes, mask: Mask, labels: Labels) -> Kept:
    """What a receiver of the picture can tell of the mask (H×W class ids) that it was painted from."""
    palette = palette_of(labels)
    seen = np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR), np.int32)
    colours = palette[: len(labels.colours)].astype(np.int32)
    distances = np.stack([((seen - colour) ** 2).sum(axis=-1) for colour in colours])
    return Kept(
        exact=float(np.mean(np.all(seen == palette[mask], axis=-1))),
        nearest=float(np.mean(distances.argmin(axis=0) == mask)),
    )
