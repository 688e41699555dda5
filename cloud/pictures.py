"""Pictures that every machine draws alike, for measuring where no camera's are at hand."""

import numpy as np

from cloud.engines.engine import Images
from shared.opencv import cv2

_SHAPES = 24  # In each picture: as many as things in a street.


def pictures(height: int, width: int, count: int) -> Images:
    """uint8 count×height×width×3: a bright sky over a dark ground, with shapes of all colours; no two alike.

    No noise: a network is at a loss with it, and its labels change with every rounding.
    """
    drawn = np.empty((count, height, width, 3), np.uint8)
    rows = np.linspace(0, 1, height, dtype=np.float32)[:, np.newaxis]
    columns = np.linspace(0, 1, width, dtype=np.float32)[np.newaxis, :]
    for number, picture in enumerate(drawn):
        random = np.random.default_rng(number)
        horizon = random.uniform(0.35, 0.6)
        for channel in range(3):
            sky, ground, slope = random.uniform(150, 250), random.uniform(40, 110), random.uniform(-30, 30)
            picture[..., channel] = np.clip(np.where(rows < horizon, sky, ground) + slope * (rows + columns), 0, 255)
        for shape in range(_SHAPES):
            colour = random.integers(0, 256, 3).tolist()
            centre = random.uniform(0, (width, height)).astype(int).tolist()
            half = (random.uniform(0.01, 0.12, 2) * (width, height)).astype(int) + 1
            if shape % 2:
                cv2.ellipse(picture, centre, half.tolist(), random.uniform(0, 180), 0, 360, colour, -1)
            else:
                cv2.rectangle(picture, (centre - half).tolist(), (centre + half).tolist(), colour, -1)
    return drawn
