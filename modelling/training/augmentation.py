"""What a training crop goes through, so that the network meets light and air that no training weather has."""

import numpy as np
import numpy.typing as npt

from shared.imaging.opencv import cv2

Picture = npt.NDArray[np.uint8]  # H×W×3, RGB.


def augmented(picture: Picture, labels: npt.NDArray[np.uint8], rng: np.random.Generator) -> tuple[Picture, Picture]:
    """Mirror, veil, light, blur and noise, each by chance; the labels (H×W) are only mirrored."""
    if rng.random() < 0.5:  # noqa: PLR2004  # An even chance.
        picture, labels = picture[:, ::-1], labels[:, ::-1]
    return relit(np.ascontiguousarray(picture), rng), np.ascontiguousarray(labels)


def relit(picture: Picture, rng: np.random.Generator) -> Picture:
    """Veil, light, blur and noise, each by chance: nothing moves."""
    if rng.random() < _VEILED:
        picture = _veiled(picture, rng)
    picture = np.asarray(cv2.LUT(picture, _light(rng)), np.uint8)
    if rng.random() < _BLURRED:
        picture = np.asarray(cv2.GaussianBlur(picture, (3, 3), rng.uniform(0.3, 0.9)), np.uint8)
    if rng.random() < _NOISY:
        picture = _noisy(picture, rng)
    return picture


_VEILED, _BLURRED, _NOISY = 0.25, 0.15, 0.2


def _light(rng: np.random.Generator) -> Picture:
    """Exposure, gamma, contrast and a colour cast as one table of 1×256×3 for `cv2.LUT`."""
    levels = np.linspace(0, 1, 256)[:, np.newaxis]
    cast = np.exp(rng.normal(0, 0.05, 3))
    lit = (levels ** np.exp(rng.normal(0, 0.15))) * cast * np.exp(rng.normal(0, 0.15))
    lit = (lit - 0.45) * np.exp(rng.normal(0, 0.12)) + 0.45 + rng.normal(0, 0.03)
    return np.asarray(np.clip(lit, 0, 1) * 255, np.uint8)[np.newaxis]


def _veiled(picture: Picture, rng: np.random.Generator) -> Picture:
    """A grey or coloured haze, uneven over the picture and never opaque."""
    height, width = picture.shape[:2]
    grid = rng.uniform(0, rng.uniform(0.2, 0.55), (3, 3)).astype(np.float32)
    share = cv2.resize(grid, (width, height), interpolation=cv2.INTER_LINEAR)[..., np.newaxis]
    colour = np.clip(rng.uniform(60, 235) + rng.normal(0, 12, 3), 0, 255).astype(np.float32)
    return (picture * (1 - share) + colour * share).astype(np.uint8)


def _noisy(picture: Picture, rng: np.random.Generator) -> Picture:
    """Noise of a random strength, up to that of a poor sensor."""
    noise = rng.standard_normal(picture.shape, np.float32) * np.float32(rng.uniform(1, 7))
    return np.asarray(np.clip(picture + noise, 0, 255), np.uint8)
