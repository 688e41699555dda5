"""Simulates a camera sensor: Bayer mosaic, vignetting, exposure drift and noise."""

from math import pi, sin
from random import Random

import cv2
import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.canvas import Image
from shared.errors import SkylaneError
from shared.imaging.frames import Layout, Pixels

_TWELVE_BITS = np.uint16(4095)
_FIELD = 256  # Maximum shift of the noise field in each direction, in pixels.


class SensorLayoutError(SkylaneError):
    """The requested sensor layout is not a Bayer layout."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        known = ", ".join(name for name in Layout if name.is_bayer)
        super().__init__(f"a sensor cannot produce {layout.value}: choose one of {known}")


class Sensor:
    """A camera sensor.

    Gamma is not changed, so a demosaiced frame looks like the rendered image. The 16-bit layouts have 12-bit numbers,
    shifted left by 4 to fill the range.

    Args:
        seed: Seed of noise and exposure.
        layout: A Bayer layout.
        noise: 1 for a camera in daylight, 0 for no noise.
        vignetting: Share of light missing in the corners, 0 to 1.
        drift: Largest share by which the exposure differs from 1; it varies with periods of about 600 and 100 frames.

    Raises:
        SensorLayoutError: `layout` is not a Bayer layout.
    """

    def __init__(
        self, seed: int, layout: Layout, *, noise: float = 1.0, vignetting: float = 0.25, drift: float = 0.08
    ) -> None:
        if not layout.is_bayer:
            raise SensorLayoutError(layout)
        rng = Random(f"sensor/{seed}")
        self._seed = seed
        self._layout = layout
        self._vignetting = vignetting
        self._drift = drift
        self._phases = (rng.uniform(0, 2 * pi), rng.uniform(0, 2 * pi))
        self._range = int(_TWELVE_BITS) / 255.0 if layout.dtype == np.uint16 else 1.0
        # Linear model of EMVA 1288: shot noise grows with the square root of the light, read noise is constant.
        levels = np.arange(256, dtype=np.float32)
        self._sigma = (noise * self._range * np.sqrt(1.2 + 0.035 * levels)).astype(np.float32)
        self._fields: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None = None

    def capture(self, rgb: Image, index: int) -> Pixels:
        """Returns the raw frame `index` of a rendered image H×W×3: H×W uint8, or uint16 over the full range.

        The result depends only on the seed, the image and the index.
        """
        height, width = rgb.shape[:2]
        mosaic = self._mosaic(rgb)
        shade, field = self._fields_of(height, width)
        rng = Random(f"capture/{self._seed}/{index}")
        top, left = rng.randrange(_FIELD), rng.randrange(_FIELD)
        gain = self.exposure(index) * self._range
        light = cv2.multiply(mosaic, shade, scale=gain, dtype=cv2.CV_32F)
        noise = cv2.multiply(cv2.LUT(mosaic, self._sigma), field[top : top + height, left : left + width])
        if self._layout.dtype == np.uint8:
            return np.asarray(cv2.add(light, noise, dtype=cv2.CV_8U), np.uint8)
        twelve = np.asarray(cv2.add(light, noise, dtype=cv2.CV_16U), np.uint16)
        return np.asarray(np.minimum(twelve, _TWELVE_BITS) << 4, np.uint16)

    def exposure(self, index: int) -> float:
        """Returns the exposure factor of frame `index`."""
        slow, quick = self._phases
        return 1.0 + self._drift * (0.7 * sin(index / 95.0 + slow) + 0.3 * sin(index / 17.0 + quick))

    def _mosaic(self, rgb: Image) -> Image:
        mosaic = np.empty(rgb.shape[:2], np.uint8)
        for place, letter in enumerate(self._layout.bayer_pattern):
            row, column = divmod(place, 2)
            mosaic[row::2, column::2] = rgb[row::2, column::2, "rgb".index(letter)]
        return mosaic

    def _fields_of(self, height: int, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Returns the share of light at each pixel, H×W, and a field of unit noise that is larger by the shifts."""
        if self._fields is None or self._fields[0].shape != (height, width):
            rows = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
            columns = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
            shade = 1 - self._vignetting * ((rows**2 + columns**2) / 2) ** 1.5
            rng = np.random.default_rng([self._seed, 9])
            field = rng.standard_normal((height + _FIELD, width + _FIELD), dtype=np.float32)
            self._fields = (shade.astype(np.float32), field)
        return self._fields
