"""Augmentation of training images with light and haze that no training weather has."""

import numpy as np
import numpy.typing as npt

from shared.imaging.opencv import cv2

Image = npt.NDArray[np.uint8]  # H×W×3, RGB.

_HAZE_PROBABILITY, _BLUR_PROBABILITY, _NOISE_PROBABILITY = 0.25, 0.15, 0.2


def augmented(image: Image, labels: npt.NDArray[np.uint8], rng: np.random.Generator) -> tuple[Image, Image]:
    """Applies random mirroring, and the effects of `relit`; labels (H×W) are only mirrored."""
    if rng.random() < 0.5:  # noqa: PLR2004
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
