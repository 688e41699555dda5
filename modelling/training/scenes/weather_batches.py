"""Batches of small images with their weather, augmented without changing the look of the weather."""

import numpy as np
import numpy.typing as npt

from modelling.training.batch_loader import BatchLoader
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore
from shared.imaging.opencv import cv2

SMALL_HEIGHT, SMALL_WIDTH = HEIGHT // 2, WIDTH // 2

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]  # Images B×H×W×3 RGB, weathers B.

_MIN_CROP = 0.75  # Smallest size of a crop relative to the image's sides.


def halved(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Returns the image at the classifier's size, averaged by area as in the vehicle's preprocessing."""
    return np.asarray(cv2.resize(image, (SMALL_WIDTH, SMALL_HEIGHT), interpolation=cv2.INTER_AREA), np.uint8)


class WeatherLoader(BatchLoader[Batch]):
    """Loads batches of images with random crop, mirroring, brightness and noise.

    Haze and colour casts are excluded, because they distinguish the weathers.
    """

    def __init__(self, store: SceneStore, *, batch: int, seed: int) -> None:
        self._store = store
        self._batch = batch
        self._rng = np.random.default_rng(seed)
        super().__init__("weathers")

    def _next(self) -> Batch:
        indices = self._rng.integers(len(self._store.pictures), size=self._batch)
        images = np.stack([self._augmented(self._store.pictures[index]) for index in indices])
        return images, self._store.weathers[indices]

    def _augmented(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        rng = self._rng
        share = rng.uniform(_MIN_CROP, 1)
        height, width = int(HEIGHT * share), int(WIDTH * share)
        top, left = rng.integers(HEIGHT - height + 1), rng.integers(WIDTH - width + 1)
        crop = halved(image[top : top + height, left : left + width])
        if rng.random() < 0.5:  # noqa: PLR2004
            crop = crop[:, ::-1]
        noise = rng.standard_normal(crop.shape, np.float32) * np.float32(rng.uniform(0, 3))
        return np.asarray(np.clip(crop * np.float32(rng.uniform(0.9, 1.1)) + noise, 0, 255), np.uint8)
