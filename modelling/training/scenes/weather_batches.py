"""Batches of small pictures with their weather, changed only in ways that no weather changes a picture."""

import numpy as np
import numpy.typing as npt

from modelling.training.batch_loader import BatchLoader
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore
from shared.imaging.opencv import cv2

SMALL_HEIGHT, SMALL_WIDTH = HEIGHT // 2, WIDTH // 2

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]  # Pictures B×H×W×3 RGB, weathers B.

_SMALLEST = 0.75  # Of the picture's sides, what a crop shows at least.


def halved(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A picture of the classifier's size, averaged by area as the vehicle's preprocessing does."""
    return np.asarray(cv2.resize(picture, (SMALL_WIDTH, SMALL_HEIGHT), interpolation=cv2.INTER_AREA), np.uint8)


class WeatherLoader(BatchLoader[Batch]):
    """Gives batches in which each picture is cut, mirrored and made a little lighter or noisier.

    No veil and no cast: those are what the weathers differ in.
    """

    def __init__(self, store: SceneStore, *, batch: int, seed: int) -> None:
        self._store = store
        self._batch = batch
        self._rng = np.random.default_rng(seed)
        super().__init__("weathers")

    def _next(self) -> Batch:
        places = self._rng.integers(len(self._store.pictures), size=self._batch)
        return np.stack([self._changed(self._store.pictures[place]) for place in places]), self._store.weathers[places]

    def _changed(self, picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        rng = self._rng
        share = rng.uniform(_SMALLEST, 1)
        height, width = int(HEIGHT * share), int(WIDTH * share)
        top, left = rng.integers(HEIGHT - height + 1), rng.integers(WIDTH - width + 1)
        changed = halved(picture[top : top + height, left : left + width])
        if rng.random() < 0.5:  # noqa: PLR2004  # An even chance.
            changed = changed[:, ::-1]
        noise = rng.standard_normal(changed.shape, np.float32) * np.float32(rng.uniform(0, 3))
        return np.asarray(np.clip(changed * np.float32(rng.uniform(0.9, 1.1)) + noise, 0, 255), np.uint8)
