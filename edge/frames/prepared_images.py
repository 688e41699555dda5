"""Hands the images that the pipeline prepares to the presenter."""

import threading
from dataclasses import dataclass

from shared import clock
from shared.imaging.frames import Pixels
from shared.imaging.geometry import Geometry


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """The image of a frame as it is sent; nobody changes it any more."""

    sequence: int
    image: Pixels  # In the colour order of the model; of the size of the model's input, or as demosaiced.
    geometry: Geometry


class PreparedImages:
    """The latest prepared image of each camera. Any thread may call any method."""

    def __init__(self) -> None:
        self._images: dict[str, PreparedImage] = {}
        self._passed: dict[str, int] = {}  # By camera, the latest frame that the pipeline has finished.
        self._changed = threading.Condition()

    def add(self, camera: str, image: PreparedImage) -> None:
        """Replaces the image of a camera by that of a later frame."""
        with self._changed:
            self._images[camera] = image

    def passed(self, camera: str, sequence: int) -> None:
        """Reports that the pipeline has finished a frame: it was sent, answered without a worker, or dropped."""
        with self._changed:
            self._passed[camera] = sequence
            self._changed.notify_all()

    def wait_for(self, camera: str, sequence: int, until_ns: int) -> PreparedImage | None:
        """Waits until the pipeline has finished a frame, or until a time; returns its image if there is one."""
        with self._changed:
            timeout_s = max(0, until_ns - clock.now_ns()) / 1e9
            self._changed.wait_for(lambda: self._passed.get(camera, -1) >= sequence, timeout_s)
            image = self._images.get(camera)
        return image if image is not None and image.sequence == sequence else None
