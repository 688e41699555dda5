"""Batches of augmented crops from a frame store, made in their own thread."""

import numpy as np
import numpy.typing as npt

from modelling.training.augmentation import augmented
from modelling.training.batch_loader import BatchLoader
from modelling.training.frame_store import FrameStore
from shared.imaging.opencv import cv2

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]  # Pictures B×H×W×3 RGB, labels B×H×W.

_TRIES = 6  # Places looked at for a crop; the one with most of what is rare is taken.
_THINNING = 4  # Rows and columns between the pixels looked at for it.


class CropLoader(BatchLoader[Batch]):
    """Gives batches by `next`, for ever; `value`: of each class, how much its pixels are worth to a crop.

    `halved`: the share of crops that show twice the height and width at half the resolution: more of the street and the
    whole of what is near, for the same work.
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
        places = self._rng.choice(self._store.ready_indices(), self._batch)
        crops = [self._crop(int(place)) for place in places]
        return np.stack([picture for picture, _ in crops]), np.stack([labels for _, labels in crops])

    def _crop(self, index: int) -> Batch:
        whole = self._store.labels[index]
        step = 2 if self._rng.random() < self._halved else 1
        height, width = step * self._height, step * self._width
        corners = [(self._start(whole.shape[0], height), self._start(whole.shape[1], width)) for _ in range(_TRIES)]
        top, left = max(corners, key=lambda corner: self._worth(whole[corner[0] :, corner[1] :][:height, :width]))
        area = (slice(top, top + height), slice(left, left + width))
        picture, labels = self._store.pictures[index][area], whole[area]
        if step > 1:
            picture = np.asarray(
                cv2.resize(picture, (self._width, self._height), interpolation=cv2.INTER_AREA), np.uint8
            )
            labels = labels[self._rng.integers(step) :: step, self._rng.integers(step) :: step]
        return augmented(picture, labels, self._rng)

    def _start(self, whole: int, part: int) -> int:
        """Where a part begins. A fifth of it may hang over and is pushed back: or the borders would hardly be seen."""
        return min(max(int(self._rng.integers(-part // 5, whole - part + part // 5 + 1)), 0), whole - part)

    def _worth(self, labels: npt.NDArray[np.uint8]) -> float:
        thinned = labels[::_THINNING, ::_THINNING].ravel()
        # The root: a second person adds less than the first.
        return float(self._value @ np.sqrt(np.bincount(thinned, minlength=len(self._value)) / thinned.size))
