"""Batches of augmented crops for the segmentation training."""

import numpy as np
import numpy.typing as npt

from modelling.training.augmentation import augmented
from modelling.training.batch_loader import BatchLoader
from modelling.training.frame_store import FrameStore
from shared.imaging.opencv import cv2

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]  # Images B×H×W×3 RGB, labels B×H×W.

_CANDIDATES = 6  # Positions per crop, of which the one with the most valuable pixels is used.
_SAMPLING = 4  # Rows and columns per pixel that the comparison looks at.


class CropLoader(BatchLoader[Batch]):
    """Loads batches of random crops.

    Args:
        store: The frames.
        batch: Crops per batch.
        height: Height of a crop in pixels.
        width: Width of a crop in pixels.
        value: The value of a pixel by class id; crops with a higher value are preferred.
        halved: The share of crops that cover twice the height and width at half the resolution, which shows more context
            for the same work.
        seed: Seed of the random choices.
        ahead: Batches to prepare in advance.
    """

    def __init__(
        self,
        store: FrameStore,
        *,
        batch: int,
        height: int,
        width: int,
        value: npt.NDArray[np.float32],
        halved: float,
        seed: int,
        ahead: int = 4,
    ) -> None:
        self._store = store
        self._batch = batch
        self._height = height
        self._width = width
        self._value = value
        self._halved = halved
        self._rng = np.random.default_rng(seed)
        super().__init__("crops", ahead)

    def _next(self) -> Batch:
        indices = self._rng.choice(len(self._store.pictures), self._batch)
        crops = [self._crop(int(index)) for index in indices]
        return np.stack([image for image, _ in crops]), np.stack([labels for _, labels in crops])

    def _crop(self, index: int) -> Batch:
        frame = self._store.labels[index]
        step = 2 if self._rng.random() < self._halved else 1
        height, width = step * self._height, step * self._width
        corners = [
            (self._start(frame.shape[0], height), self._start(frame.shape[1], width)) for _ in range(_CANDIDATES)
        ]
        top, left = max(corners, key=lambda corner: self._crop_value(frame[corner[0] :, corner[1] :][:height, :width]))
        area = (slice(top, top + height), slice(left, left + width))
        image, labels = self._store.pictures[index][area], frame[area]
        if step > 1:
            image = np.asarray(cv2.resize(image, (self._width, self._height), interpolation=cv2.INTER_AREA), np.uint8)
            labels = labels[self._rng.integers(step) :: step, self._rng.integers(step) :: step]
        return augmented(image, labels, self._rng)

    def _start(self, whole: int, part: int) -> int:
        """Returns a random start of a part; starts up to a fifth outside are clipped, so that borders are not rare."""
        return min(max(int(self._rng.integers(-part // 5, whole - part + part // 5 + 1)), 0), whole - part)

    def _crop_value(self, labels: npt.NDArray[np.uint8]) -> float:
        sampled = labels[::_SAMPLING, ::_SAMPLING].ravel()
        # The root reduces the value of further pixels of the same class.
        return float(self._value @ np.sqrt(np.bincount(sampled, minlength=len(self._value)) / sampled.size))
