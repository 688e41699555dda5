"""Batches of small images with the answer to "is there a vehicle?", and of images with their weather."""

import numpy as np
import numpy.typing as npt

from modelling.recipes import HEIGHT_SHARE, OBJECTS
from modelling.training.crops import relit
from modelling.training.frame_store import BatchLoader
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore
from shared.imaging.opencv import cv2

Batch = tuple[
    npt.NDArray[np.uint8], npt.NDArray[np.uint8]
]  # Images B×H×W×3 RGB, labels B (indices in PRESENCE, or of weathers).

_MIN_CROP = 0.85  # Smallest size of a crop relative to the image's sides.
_VEHICLE = list(OBJECTS).index("vehicle")


def answer(rows: npt.NDArray[np.float32], height: float) -> int:
    """Returns the index in PRESENCE for rows of a store; see `modelling.evaluation.true_boxes.truth_of`."""
    heights = rows[rows[:, 0] == _VEHICLE][:, 4] - rows[rows[:, 0] == _VEHICLE][:, 2]
    return int((heights >= HEIGHT_SHARE * height).any())


def small(image: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Returns the image at the classifier's size, averaged by area as in the vehicle's preprocessing."""
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


class PresenceLoader(BatchLoader[Batch]):
    """Loads batches of images of height×width with random crop, mirroring, light, haze and noise."""

    def __init__(self, store: SceneStore, *, batch: int, height: int, width: int, seed: int) -> None:
        self._store = store
        self._batch = batch
        self._height = height
        self._width = width
        self._rng = np.random.default_rng(seed)
        super().__init__("presence")

    def _next(self) -> Batch:
        examples = [
            self._example(int(index)) for index in self._rng.integers(len(self._store.pictures), size=self._batch)
        ]
        return np.stack([image for image, _ in examples]), np.array([truth for _, truth in examples], np.uint8)

    def _example(self, index: int) -> tuple[npt.NDArray[np.uint8], int]:
        rng = self._rng
        share = rng.uniform(_MIN_CROP, 1)
        height, width = int(HEIGHT * share), int(WIDTH * share)
        top, left = rng.integers(HEIGHT - height + 1), rng.integers(WIDTH - width + 1)
        rows = self._store.boxes[index].copy()
        rows[:, 1:] = np.clip(
            rows[:, 1:], (left, top, left, top), (left + width, top + height, left + width, top + height)
        )
        rows = rows[rows[:, 3] > rows[:, 1]]
        crop = small(self._store.pictures[index, top : top + height, left : left + width], self._height, self._width)
        if rng.random() < 0.5:  # noqa: PLR2004
            crop = crop[:, ::-1]
        return relit(np.ascontiguousarray(crop), rng), answer(rows, height)


SMALL_HEIGHT, SMALL_WIDTH = HEIGHT // 2, WIDTH // 2


_MIN_WEATHER_CROP = 0.75  # Smallest size of a crop relative to the image's sides.


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
        share = rng.uniform(_MIN_WEATHER_CROP, 1)
        height, width = int(HEIGHT * share), int(WIDTH * share)
        top, left = rng.integers(HEIGHT - height + 1), rng.integers(WIDTH - width + 1)
        crop = halved(image[top : top + height, left : left + width])
        if rng.random() < 0.5:  # noqa: PLR2004
            crop = crop[:, ::-1]
        noise = rng.standard_normal(crop.shape, np.float32) * np.float32(rng.uniform(0, 3))
        return np.asarray(np.clip(crop * np.float32(rng.uniform(0.9, 1.1)) + noise, 0, 255), np.uint8)
