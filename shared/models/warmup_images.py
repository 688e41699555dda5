"""Images for warm-up and engine comparison: four frames of the synthetic drive, which are part of the package.

On noise or simple shapes, the labels of a network change with every rounding: engines that agree on 99.95 % of the pixels
of a street agreed on 98.9 % of drawn ellipses. The frames are those of `skylane bag make` with the seeds 900201 to
900204, which are not used in training, as a vehicle sends them.
"""

from functools import cache
from pathlib import Path

import numpy as np

from shared.imaging.opencv import cv2
from shared.inference.engine import Images

_STREETS = Path(__file__).resolve().parent / "streets"
_SHIFT = 40  # Columns by which the frames are moved each time they are repeated.


def warmup_images(height: int, width: int, count: int) -> Images:
    """Returns different images: uint8 count×height×width×3, RGB."""
    scaled = [cv2.resize(street, (width, height), interpolation=cv2.INTER_AREA) for street in _streets()]
    rounds = [np.roll(scaled[number % len(scaled)], number // len(scaled) * _SHIFT, axis=1) for number in range(count)]
    return np.stack(rounds).astype(np.uint8, copy=False)


@cache
def _streets() -> list[Images]:
    paths = sorted(_STREETS.glob("*.jpg"))
    assert paths, f"{_STREETS} has no images: the package is incomplete"
    return [_read(path) for path in paths]


def _read(path: Path) -> Images:
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    assert image is not None, f"{path} cannot be read: the package is damaged"
    return np.ascontiguousarray(image[..., ::-1], np.uint8)
