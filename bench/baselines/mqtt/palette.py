"""Reproduction of the first system's masks: colours of a palette as JPEG, and the loss of classes that this causes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shared.imaging.labels import Labels
from shared.imaging.mask_codecs import Mask
from shared.imaging.opencv import cv2

Palette = npt.NDArray[np.uint8]  # 256×3, in OpenCV's order: blue, green, red.
_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class MaskAgreement:
    """The shares of a mask's pixels, 0 to 1, whose class can be recovered."""

    exact: float  # The colour is exactly that of the class.
    nearest: float  # The class with the nearest colour is the right one.


def palette_of(labels: Labels) -> Palette:
    """Returns a colour for each of 256 class ids; black for ids without a label."""
    table = np.zeros((_ENTRIES, 3), np.uint8)
    colours = np.array(labels.colours[:_ENTRIES], np.uint8)
    table[: len(colours)] = colours[:, ::-1]
    return table


def encode_mask(mask: Mask, palette: Palette) -> bytes:
    """Encodes a mask as a JPEG image of its classes' colours, with OpenCV's default quality."""
    done, data = cv2.imencode(".jpg", palette[mask])
    assert done
    return data.tobytes()


def compare_mask(jpeg: bytes, mask: Mask, labels: Labels) -> MaskAgreement:
    """Compares a received image with the mask, H×W class ids, from which it was encoded."""
    palette = palette_of(labels)
    image = np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR), np.int32)
    colours = palette[: len(labels.colours)].astype(np.int32)
    distances = np.stack([((image - colour) ** 2).sum(axis=-1) for colour in colours])
    return MaskAgreement(
        exact=float(np.mean(np.all(image == palette[mask], axis=-1))),
        nearest=float(np.mean(distances.argmin(axis=0) == mask)),
    )
