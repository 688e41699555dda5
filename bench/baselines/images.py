"""Images of the first of the systems that are compared with Skylane: whole frames in colour, and masks as JPEG images of a palette's colours."""

from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from shared.imaging.bayer import to_colour
from shared.imaging.codec import Mask
from shared.imaging.frames import Frame, Layout
from shared.imaging.labels import Labels
from shared.imaging.opencv import cv2

ColourImage = npt.NDArray[np.uint8]  # H×W×3.
Palette = npt.NDArray[np.uint8]  # 256×3, in OpenCV's order: blue, green, red.
_PALETTE_SIZE = 256


def to_colour_image(frame: Frame, target: Layout) -> ColourImage:
    """Converts a whole frame to colour with OpenCV's bilinear demosaicing, as the original did.

    The original swapped red and blue on one of its paths, which costs accuracy but no time; this is not reproduced.
    """
    return to_colour(frame.pixels, frame.layout, target, "bilinear")


def fit(image: ColourImage, height: int, width: int) -> ColourImage:
    """Resizes an image with cubic interpolation so that one axis fits, and crops the other around its middle: height×width×3."""
    scale = max(height / image.shape[0], width / image.shape[1])
    size = (max(width, round(image.shape[1] * scale)), max(height, round(image.shape[0] * scale)))
    resized = cv2.resize(image, size, interpolation=cv2.INTER_CUBIC)
    top, left = (resized.shape[0] - height) // 2, (resized.shape[1] - width) // 2
    return np.ascontiguousarray(resized[top : top + height, left : left + width], np.uint8)


@dataclass(slots=True)
class Timer:
    """Durations of consecutive steps, milliseconds by name, in order."""

    durations_ms: dict[str, float] = field(default_factory=dict)
    _last_ns: int = field(default_factory=perf_counter_ns)

    @property
    def total_ms(self) -> float:
        """The time of all steps."""
        return sum(self.durations_ms.values())

    def stop(self, name: str) -> None:
        """Ends a step; the next one begins."""
        now_ns = perf_counter_ns()
        self.durations_ms[name] = (now_ns - self._last_ns) / 1e6
        self._last_ns = now_ns


@dataclass(frozen=True, slots=True)
class MaskAgreement:
    """The shares of a mask's pixels, 0 to 1, whose class can be recovered."""

    exact: float  # The colour is exactly that of the class.
    nearest: float  # The class with the nearest colour is the right one.


def palette_of(labels: Labels) -> Palette:
    """Returns a colour for each of 256 class ids; black for ids without a label."""
    table = np.zeros((_PALETTE_SIZE, 3), np.uint8)
    colours = np.array(labels.colours[:_PALETTE_SIZE], np.uint8)
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
