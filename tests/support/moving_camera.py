"""A camera that moves over a large picture: ticks whose true motion is known."""

from typing import Any

import numpy as np
import numpy.typing as npt

from edge.presenting.presenter import Tick
from shared.imaging.geometry import Geometry, Resize, plan
from shared.imaging.opencv import cv2

HEIGHT, WIDTH = 192, 320
PERIOD_NS = 100_000_000
GEOMETRY = plan(Resize.STRETCH, HEIGHT, WIDTH, HEIGHT, WIDTH)
_MARGIN = 160  # The camera may move by so many pixels from its first place.
_SMOOTHING_PX = 9


class MovingCamera:
    """Cuts images and their masks from one large picture, at whole pixels."""

    def __init__(self, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        size = (HEIGHT + 2 * _MARGIN, WIDTH + 2 * _MARGIN)
        noise = rng.integers(0, 256, (*size, 3)).astype(np.float32)
        smooth = cv2.GaussianBlur(noise, (0, 0), _SMOOTHING_PX)
        self._picture = (255 * (smooth - smooth.min()) / np.ptp(smooth)).astype(np.uint8)
        self._classes: Any = cv2.resize(
            rng.integers(0, 5, (size[0] // 32, size[1] // 32), dtype=np.uint8),
            size[::-1],
            interpolation=cv2.INTER_NEAREST,
        )

    def tick(self, number: int, x: int, y: int = 0, due_ns: int | None = None, geometry: Geometry = GEOMETRY) -> Tick:
        """Returns a tick of the camera at a place. `due_ns`: every 100 ms if it is not given."""
        image = np.ascontiguousarray(_cut(self._picture, x, y))
        return Tick(number, number * PERIOD_NS if due_ns is None else due_ns, image, geometry)

    def mask(self, x: int, y: int = 0) -> npt.NDArray[np.uint8]:
        """Returns the true classes of what the camera sees from a place."""
        return np.ascontiguousarray(_cut(self._classes, x, y))


def _cut(picture: npt.NDArray[np.uint8], x: int, y: int) -> npt.NDArray[np.uint8]:
    return picture[_MARGIN + y : _MARGIN + y + HEIGHT, _MARGIN + x : _MARGIN + x + WIDTH]
