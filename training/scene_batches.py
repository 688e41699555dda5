"""Batches for the training on scenes: images with their answer or weather, and crops with the target outputs of the detector."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from modelling.architectures.networks import STRIDE, grid_size
from modelling.evaluation.bag_images import split_boxes
from rosbag_tools.drive.scene import HEIGHT_SHARE, OBJECTS
from shared.imaging.opencv import cv2
from training.crops import relit
from training.dataset import HEIGHT, WIDTH, BatchLoader, SceneStore

ClassifierBatch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]  # Images B×H×W×3 RGB, labels B.

_MIN_CROP = 0.85  # Smallest size of a crop relative to the image's sides.
_VEHICLE = list(OBJECTS).index("vehicle")


def answer(rows: npt.NDArray[np.float32], height: float) -> int:
    """Returns the index in PRESENCE for rows of a store; see `modelling.evaluation.bag_images.truth_of`."""
    heights = rows[rows[:, 0] == _VEHICLE][:, 4] - rows[rows[:, 0] == _VEHICLE][:, 2]
    return int((heights >= HEIGHT_SHARE * height).any())


def small(image: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Returns the image at the classifier's size, averaged by area as in the vehicle's preprocessing."""
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


class PresenceLoader(BatchLoader[SceneStore, ClassifierBatch]):
    """Loads batches of images of height×width with random crop, mirroring, light, haze and noise."""

    def _next(self) -> ClassifierBatch:
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
        if rng.random() < 0.5:
            crop = crop[:, ::-1]
        return relit(np.ascontiguousarray(crop), rng), answer(rows, height)


_MIN_WEATHER_CROP = 0.75  # Smallest size of a crop relative to the image's sides.


class WeatherLoader(BatchLoader[SceneStore, ClassifierBatch]):
    """Loads batches of images with random crop, mirroring, brightness and noise.

    Haze and colour casts are excluded, because they distinguish the weathers.
    """

    def _next(self) -> ClassifierBatch:
        indices = self._rng.integers(len(self._store.pictures), size=self._batch)
        images = np.stack([self._augmented(self._store.pictures[index]) for index in indices])
        return images, self._store.weathers[indices]

    def _augmented(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        rng = self._rng
        share = rng.uniform(_MIN_WEATHER_CROP, 1)
        height, width = int(HEIGHT * share), int(WIDTH * share)
        top, left = rng.integers(HEIGHT - height + 1), rng.integers(WIDTH - width + 1)
        crop = small(image[top : top + height, left : left + width], self._height, self._width)
        if rng.random() < 0.5:
            crop = crop[:, ::-1]
        noise = rng.standard_normal(crop.shape, np.float32) * np.float32(rng.uniform(0, 3))
        return np.asarray(np.clip(crop * np.float32(rng.uniform(0.9, 1.1)) + noise, 0, 255), np.uint8)


_CORE = 0.54  # The share of a box whose cells learn its shape (Liu et al. 2020, "Training-Time-Friendly Network").
_UNSCALED = 0.5  # The share of crops at the original resolution; the others are scaled by up to a fifth.

Floats = npt.NDArray[np.float32]


class DetectionTarget(NamedTuple):
    """The target outputs for one image or a stack of images, by cells h×w of `STRIDE` pixels."""

    heat: Floats  # h×w×classes: 1 in the cell of an object's centre, with a Gaussian around it.
    counted: Floats  # h×w: 0 at objects that are too small or cut off, which the loss ignores.
    boxes: Floats  # h×w×4: the box of the object whose core contains the cell, x1, y1, x2, y2 in pixels.
    weights: Floats  # h×w: the weight of the cell's box in the loss; 0 outside of all cores.


Batch = tuple[npt.NDArray[np.uint8], DetectionTarget]


@dataclass(frozen=True, slots=True)
class ObjectCrop:
    """An image H×W×3, the boxes N×5 to train on, and the boxes M×5 to ignore."""

    image: npt.NDArray[np.uint8]
    trained: Floats
    ignored: Floats


class ObjectLoader(BatchLoader[SceneStore, Batch]):
    """Loads batches of augmented crops of the images at `indices`."""

    def __init__(self, store: SceneStore, indices: npt.NDArray[np.intp], **options: int) -> None:
        super().__init__(store, **options)
        self._indices = indices

    def _next(self) -> Batch:
        crops = [self._crop(int(index)) for index in self._rng.choice(self._indices, self._batch)]
        targets = [detection_target(crop.trained, crop.ignored, self._height, self._width) for crop in crops]
        stacked = DetectionTarget(*(np.stack(parts) for parts in zip(*targets, strict=True)))
        return np.stack([crop.image for crop in crops]), stacked

    def _crop(self, index: int) -> ObjectCrop:
        rng = self._rng
        scene = self._store.pictures[index]
        rows = self._store.boxes[index]
        max_zoom = min(1.2, scene.shape[0] / self._height, scene.shape[1] / self._width)
        zoom = 1.0 if rng.random() < _UNSCALED else rng.uniform(0.8, max_zoom)
        height, width = int(self._height * zoom), int(self._width * zoom)
        top, left = rng.integers(scene.shape[0] - height + 1), rng.integers(scene.shape[1] - width + 1)
        image = scene[top : top + height, left : left + width]
        if zoom != 1.0:
            image = np.asarray(cv2.resize(image, (self._width, self._height), interpolation=cv2.INTER_AREA))
        boxes = rows[rows[:, 0] >= 0].copy()
        boxes[:, 1:] = (boxes[:, 1:] - (left, top, left, top)) * np.float32(self._width / width)
        if rng.random() < 0.5:
            image = image[:, ::-1]
            boxes[:, [1, 3]] = self._width - boxes[:, [3, 1]]
        trained, ignored = split_boxes(boxes, self._height, self._width)
        return ObjectCrop(relit(np.ascontiguousarray(image), rng), trained, ignored)


def detection_target(trained: Floats, ignored: Floats, height: int, width: int) -> DetectionTarget:
    """Returns the target outputs for an image of height×width with the given boxes."""
    size = grid_size(height, width)
    target = DetectionTarget(
        heat=np.zeros((*size, len(OBJECTS)), np.float32),
        counted=np.ones(size, np.float32),
        boxes=np.zeros((*size, 4), np.float32),
        weights=np.zeros(size, np.float32),
    )
    for row in ignored:
        left, top = np.floor(row[1:3] / STRIDE).astype(int)
        right, bottom = np.ceil(row[3:] / STRIDE).astype(int)
        target.counted[top:bottom, left:right] = 0
    areas = np.prod(trained[:, 3:] - trained[:, 1:3], axis=1)
    for row in trained[np.argsort(-areas)]:  # Largest first, so that a small object in front keeps its cells.
        _add_box(target, row)
    return target


def _add_box(target: DetectionTarget, row: Floats) -> None:
    box = row[1:]
    size = (box[2:] - box[:2]) / STRIDE
    centre = np.floor((box[:2] + box[2:]) / 2 / STRIDE).astype(int)
    radius = np.maximum(_CORE / 2 * size, 0).astype(int)
    sigma = (2 * radius + 1) / 6
    rows, columns = target.weights.shape
    left, right = max(centre[0] - radius[0], 0), min(centre[0] + radius[0] + 1, columns)
    top, bottom = max(centre[1] - radius[1], 0), min(centre[1] + radius[1] + 1, rows)
    horizontal = np.exp(-(((np.arange(left, right) - centre[0]) / sigma[0]) ** 2) / 2)
    vertical = np.exp(-(((np.arange(top, bottom) - centre[1]) / sigma[1]) ** 2) / 2)
    core = np.outer(vertical, horizontal).astype(np.float32)
    area = (slice(top, bottom), slice(left, right))
    heat = target.heat[area][..., int(row[0])]
    np.maximum(heat, core, out=heat)
    target.counted[area] = 1
    target.boxes[area] = box
    # The weight grows with the logarithm of the area, because a bus has a hundred times as many cells as a person.
    target.weights[area] = core / core.sum() * np.log(np.prod(box[2:] - box[:2]))
