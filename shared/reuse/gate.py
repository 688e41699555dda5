"""The difference detector: reuses the result of an earlier frame for a frame that looks nearly the same.

It follows the difference detector of NoScope (Kang et al., "NoScope: Optimizing Neural Network Queries over Video at
Scale", VLDB 2017): the frames are compared as small images, by their mean squared difference.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from shared.imaging.frames import Layout, Pixels
from shared.imaging.opencv import cv2

SIDE = 50  # Height and width of a small image, in pixels.
PIXEL_LEVELS = 16  # Grey levels; `pixels` counts the pixels that differ by more.

_HALVED_FROM = 4 * SIDE  # Pixels; images with shorter sides are reduced in one step.
_NS_PER_MS = 1e6

SmallImage = npt.NDArray[np.uint8]  # SIDE×SIDE grey levels.
Form = tuple[int, int, str]  # Height, width and encoding of a camera's frames.
R = TypeVar("R")


def small_grey(image: Pixels, layout: Layout) -> SmallImage:
    """Reduces an image to SIDE×SIDE grey levels by area.

    Halving the image first is four times as fast as one step, and the result differs by at most one grey level. An odd
    last row or column is left out. Bayer patterns become grey because each 2×2 pattern becomes one pixel.
    """
    reduced = _halved(image, always=layout.is_bayer)
    if layout.channels > 1:
        reduced = cv2.cvtColor(reduced, cv2.COLOR_RGB2GRAY if layout is Layout.RGB8 else cv2.COLOR_BGR2GRAY)
    while min(reduced.shape[:2]) >= _HALVED_FROM:
        reduced = _halved(reduced)
    small: Any = cv2.resize(reduced, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(small if small.dtype == np.uint8 else small >> 8, np.uint8)


def _halved(image: Any, *, always: bool = False) -> Any:
    height, width = image.shape[0] // 2, image.shape[1] // 2
    if not always and min(image.shape[:2]) < _HALVED_FROM:
        return image
    return cv2.resize(image[: 2 * height, : 2 * width], (width, height), interpolation=cv2.INTER_AREA)


def mean_squared_difference(one: SmallImage, other: SmallImage) -> float:
    """Returns the mean squared difference of grey levels, 0 to 65,025."""
    return float(cv2.norm(one, other, cv2.NORM_L2SQR)) / one.size


def changed_pixels(one: SmallImage, other: SmallImage) -> float:
    """Returns the percentage of pixels that differ by more than PIXEL_LEVELS."""
    return 100.0 * int(np.count_nonzero(cv2.absdiff(one, other) > PIXEL_LEVELS)) / one.size


METHODS: dict[str, Callable[[SmallImage, SmallImage], float]] = {  # The values of `--gate`.
    "mse": mean_squared_difference,
    "pixels": changed_pixels,
}


def distance(method: str, one: SmallImage, other: SmallImage) -> float:
    """Returns the distance of two small images, by a method of METHODS."""
    return METHODS[method](one, other)


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The conditions for reusing a result."""

    method: str  # A key of METHODS.
    threshold: float  # Largest distance of two frames with the same result.
    reuse_frames: int  # Longest reuse, in frames of the camera.
    reuse_ms: float  # Longest reuse, in milliseconds between the two frames.


@dataclass(frozen=True, slots=True)
class ReusableFrame(Generic[R]):
    """A frame whose result is present."""

    compared: "GateComparison[R]"
    result: R

    @property
    def sequence(self) -> int:
        """The sequence number of the frame."""
        return self.compared.sequence


@dataclass(frozen=True, slots=True)
class GateComparison(Generic[R]):
    """A frame that the gate has compared. Its owner passes it to `DifferenceGate.keep` when its result is present."""

    camera: str
    form: Form
    sequence: int
    time_ns: int
    position: int  # Counts the frames of the camera.
    small: SmallImage
    distance: float | None  # None if there was no frame to compare with.
    reused: ReusableFrame[R] | None  # The frame whose result fits this frame; None if it needs a new result.


class DifferenceGate(Generic[R]):
    """Decides for each frame whether the result of an earlier frame of the same camera can be reused.

    Per camera it keeps the latest frame that has a result of its own. A reused result is never kept, so that small
    differences do not add up. All methods are thread-safe.
    """

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._kept: dict[str, ReusableFrame[R]] = {}
        self._forms: dict[str, Form] = {}
        self._positions: dict[str, int] = {}
        self.resets = 0  # The number of times a camera changed the size or encoding of its frames.

    def compare(self, camera: str, form: Form, small: SmallImage, *, sequence: int, time_ns: int) -> GateComparison[R]:
        """Compares a frame with the kept frame of its camera.

        Args:
            camera: The name of the camera.
            form: Height, width and encoding of the frame as the camera delivers it. A change discards the kept frame.
            small: The frame as `small_grey` returns it.
            sequence: The number of the frame, which increases.
            time_ns: The time of the frame, on any clock.
        """
        with self._lock:
            if self._forms.setdefault(camera, form) != form:
                self._forms[camera] = form
                self._kept.pop(camera, None)
                self.resets += 1
            position = self._positions[camera] = self._positions.get(camera, -1) + 1
        return self.compare_again(GateComparison(camera, form, sequence, time_ns, position, small, None, None))

    def compare_again(self, compared: GateComparison[R]) -> GateComparison[R]:
        """Compares a frame with the frame that is kept now, because more results may be present than before."""
        with self._lock:
            kept = self._kept.get(compared.camera)
        if kept is None or kept.compared.form != compared.form:
            return replace(compared, distance=None, reused=None)
        found = distance(self._settings.method, compared.small, kept.compared.small)
        is_near = (
            found <= self._settings.threshold
            and compared.position - kept.compared.position <= self._settings.reuse_frames
            and compared.time_ns - kept.compared.time_ns <= self._settings.reuse_ms * _NS_PER_MS
        )
        return replace(compared, distance=found, reused=kept if is_near else None)

    def keep(self, compared: GateComparison[R], result: R) -> None:
        """Keeps the result of a frame for later ones, unless a later frame's is kept or the camera's form has changed.

        A comparison whose result was reused must not be passed.
        """
        assert compared.reused is None, "a reused result would be reused again"
        with self._lock:
            kept = self._kept.get(compared.camera)
            is_latest = kept is None or kept.compared.position < compared.position
            if is_latest and self._forms[compared.camera] == compared.form:
                self._kept[compared.camera] = ReusableFrame(compared, result)
