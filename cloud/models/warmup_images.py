"""Pictures to measure engines by where no camera's are at hand: four frames of the synthetic drive, which ship.

A network is at a loss with noise or mere shapes, and its labels there change with every rounding: engines that agree on
99.95 % of a street's pixels agreed on 98.9 % of drawn ellipses. The frames are `skylane bag make` with the seeds 900201
to 900204, which no training takes, as a vehicle sends them.
"""

from functools import cache
from pathlib import Path

import numpy as np

from cloud.engines.engine import Images
from shared.imaging.opencv import cv2

_STREETS = Path(__file__).resolve().parents[1] / "streets"
_SHIFT = 40  # Columns that each further round of the same frames is moved by.


def warmup_images(height: int, width: int, count: int) -> Images:
    """uint8 count×height×width×3, red, green, blue; no two alike."""
    scaled = [cv2.resize(street, (width, height), interpolation=cv2.INTER_AREA) for street in _streets()]
    rounds = [np.roll(scaled[number % len(scaled)], number // len(scaled) * _SHIFT, axis=1) for number in range(count)]
    return np.stack(rounds).astype(np.uint8, copy=False)


@cache
def _streets() -> list[Images]:
    paths = sorted(_STREETS.glob("*.jpg"))
    assert paths, f"{_STREETS} holds no pictures: the package is incomplete"
    return [_read(path) for path in paths]


def _read(path: Path) -> Images:
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
    assert picture is not None, f"{path} cannot be read: the package is damaged"
    return np.ascontiguousarray(picture[..., ::-1], np.uint8)
