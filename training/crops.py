"""Batches of augmented crops for the segmentation training."""

import numpy as np
import numpy.typing as npt

from shared.imaging.opencv import cv2
from training.dataset import BatchLoader, FrameStore

Image = npt.NDArray[np.uint8]  # H×W×3, RGB.

_HAZE_PROBABILITY, _BLUR_PROBABILITY, _NOISE_PROBABILITY = 0.25, 0.15, 0.2


def augmented(image: Image, labels: npt.NDArray[np.uint8], rng: np.random.Generator) -> tuple[Image, Image]:
    """Applies random mirroring, and the effects of `relit`; labels (H×W) are only mirrored."""
    if rng.random() < 0.5:
        image, labels = image[:, ::-1], labels[:, ::-1]
    return relit(np.ascontiguousarray(image), rng), np.ascontiguousarray(labels)


def relit(image: Image, rng: np.random.Generator) -> Image:
    """Applies random haze, light, blur and noise, none of which moves a pixel."""
    if rng.random() < _HAZE_PROBABILITY:
        image = _with_haze(image, rng)
    image = np.asarray(cv2.LUT(image, _light_table(rng)), np.uint8)
    if rng.random() < _BLUR_PROBABILITY:
        image = np.asarray(cv2.GaussianBlur(image, (3, 3), rng.uniform(0.3, 0.9)), np.uint8)
    if rng.random() < _NOISE_PROBABILITY:
        image = _with_noise(image, rng)
    return image


def _light_table(rng: np.random.Generator) -> Image:
    """Returns random exposure, gamma, contrast and colour cast as a table of 1×256×3 for `cv2.LUT`."""
    levels = np.linspace(0, 1, 256)[:, np.newaxis]
    cast = np.exp(rng.normal(0, 0.05, 3))
    lit = (levels ** np.exp(rng.normal(0, 0.15))) * cast * np.exp(rng.normal(0, 0.15))
    lit = (lit - 0.45) * np.exp(rng.normal(0, 0.12)) + 0.45 + rng.normal(0, 0.03)
    return np.asarray(np.clip(lit, 0, 1) * 255, np.uint8)[np.newaxis]


def _with_haze(image: Image, rng: np.random.Generator) -> Image:
    """Blends in a grey or coloured haze of uneven density, never opaque."""
    height, width = image.shape[:2]
    grid = rng.uniform(0, rng.uniform(0.2, 0.55), (3, 3)).astype(np.float32)
    density = cv2.resize(grid, (width, height), interpolation=cv2.INTER_LINEAR)[..., np.newaxis]
    colour = np.clip(rng.uniform(60, 235) + rng.normal(0, 12, 3), 0, 255).astype(np.float32)
    return (image * (1 - density) + colour * density).astype(np.uint8)


def _with_noise(image: Image, rng: np.random.Generator) -> Image:
    """Adds Gaussian noise with a random standard deviation of 1 to 7 levels."""
    noise = rng.standard_normal(image.shape, np.float32) * np.float32(rng.uniform(1, 7))
    return np.asarray(np.clip(image + noise, 0, 255), np.uint8)


Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]  # Images B×H×W×3 RGB, labels B×H×W.

_CANDIDATES = 6  # Positions per crop, of which the one with the most valuable pixels is used.
_SAMPLING = 4  # Rows and columns per pixel that the comparison looks at.


class CropLoader(BatchLoader[FrameStore, Batch]):
    """Loads batches of random crops.

    Args:
        store: The frames.
        value: The value of a pixel by class id; crops with a higher value are preferred.
        halved: The share of crops that cover twice the height and width at half the resolution, which shows more context
            for the same work.
        options: See BatchLoader.
    """

    def __init__(self, store: FrameStore, *, value: npt.NDArray[np.float32], halved: float, **options: int) -> None:
        super().__init__(store, **options)
        self._value = value
        self._halved = halved

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
