"""Weathers: light, sky, haze and wetness of a drive."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.canvas import Colour, Image
from shared.errors import UnknownNameError

WEATHERS = ("clear", "overcast", "dusk", "fog", "rain")

Triple = tuple[float, float, float]

TOWARDS_CAMERA = (0.0, 0.35, -0.94)  # The normal of an upright face towards the camera: right, up, ahead.


@dataclass(frozen=True, slots=True)
class Weather:
    """Light and visibility. Colours are RGB, 0 to 255; factors multiply colours."""

    name: str
    ambient: Triple  # Light from all sides.
    sun: Triple  # Additional light from the direction of the sun.
    zenith: Triple
    skyline: Triple
    cloud: Triple
    clouds: float  # Share of the sky that is cloudy.
    haze: Triple
    haze_length: float  # Distance in metres at which 63 % of a colour is haze.
    haze_limit: float  # Maximum share of haze, so that labelled objects stay visible.
    saturation: float
    wetness: float  # Strength of reflections in the road.
    shadow: float  # Remaining light in a shadow.
    lamps: bool  # True if lamps and windows are lit.
    towards_sun: Triple = (0.4, 0.7, 0.3)  # A unit vector: right, up, ahead.

    def lit(self, colours: npt.ArrayLike, normals: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
        """Returns colours N×3 in this light, on faces with unit normals N×3 (None: the ground)."""
        light = np.asarray(self.ambient)
        facing = self.towards_sun[1] if normals is None else np.maximum(np.asarray(normals) @ self.towards_sun, 0.0)
        light = light + np.multiply.outer(facing, self.sun)
        colours = np.asarray(colours, np.float64)
        grey = colours @ (0.3, 0.59, 0.11)
        return np.asarray((grey[..., None] + (colours - grey[..., None]) * self.saturation) * light)

    def veil(self, depth: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Returns the share of haze at `depth` metres."""
        return np.asarray(self.haze_limit * (1.0 - np.exp(-np.maximum(np.asarray(depth), 0.0) / self.haze_length)))

    def seen(self, lit: npt.ArrayLike, depth: npt.ArrayLike) -> list[Colour]:
        """Returns lit colours N×3 as seen from `depth` metres."""
        share = np.asarray(self.veil(depth))[..., None]
        mixed = np.asarray(lit) * (1.0 - share) + np.asarray(self.haze) * share
        return [tuple(row) for row in np.clip(np.rint(mixed), 0, 255).astype(int).reshape(-1, 3).tolist()]

    def paint(self, colour: npt.ArrayLike, depth: float, normal: Triple = TOWARDS_CAMERA) -> Colour:
        """Returns a colour, lit and seen from `depth` metres; by default on an upright face towards the camera."""
        return self.seen(self.lit(np.asarray(colour)[None], [normal]), depth)[0]

    def veiled(self, picture: Image, depth: npt.ArrayLike) -> Image:
        """Returns a lit image H×W×3 as seen from `depth` metres: one depth, or one for each column."""
        share = np.rint(self.veil(depth) * 256).reshape(1, -1, 1)
        added = (share * np.asarray(self.haze)).astype(np.uint16)
        return np.asarray((picture * (256 - share).astype(np.uint16) + added) >> 8, np.uint8)


def weather(name: str, seed: int) -> Weather:
    """Returns the weather `name` for a drive; colour, light, haze and sun vary a little with the seed.

    Raises:
        UnknownNameError: the weather is unknown.
    """
    if name not in _WEATHERS:
        raise UnknownNameError("weather", name, WEATHERS)
    rng = Random(f"weather/{seed}")
    gain = rng.uniform(0.85, 1.15)
    warmth = rng.uniform(-0.06, 0.06)
    tone = np.array([1 + warmth, 1.0, 1 - warmth])
    side = rng.uniform(-0.8, 0.8)
    ahead = rng.uniform(-0.8, 0.8)
    sun = np.array([side, rng.uniform(0.5, 1.0), ahead])
    base = _WEATHERS[name]
    return replace(
        base,
        ambient=triple(np.asarray(base.ambient) * tone * gain),
        sun=triple(np.asarray(base.sun) * tone * gain * rng.uniform(0.8, 1.1)),
        zenith=triple(np.asarray(base.zenith) * tone * rng.uniform(0.85, 1.1)),
        skyline=triple(np.asarray(base.skyline) * tone),
        clouds=min(1.0, base.clouds * rng.uniform(0.5, 1.3)),
        haze=triple(np.asarray(base.haze) * tone),
        haze_length=base.haze_length * rng.uniform(0.8, 1.4),
        saturation=base.saturation * rng.uniform(0.85, 1.1),
        towards_sun=triple(sun / np.linalg.norm(sun)),
    )


def triple(values: npt.NDArray[np.float64]) -> Triple:
    """Returns an array of three numbers as a tuple."""
    red, green, blue = values.tolist()
    return red, green, blue


_TABLE: dict[str, tuple[Any, ...]] = {  # One column for each of WEATHERS.
    "ambient": ((0.52, 0.55, 0.62), (0.74, 0.75, 0.77), (0.30, 0.30, 0.40), (0.68, 0.69, 0.71), (0.50, 0.52, 0.56)),
    "sun": ((0.62, 0.58, 0.48), (0.06, 0.06, 0.06), (0.24, 0.15, 0.08), (0.03, 0.03, 0.03), (0.02, 0.02, 0.02)),
    "zenith": ((70, 125, 205), (165, 172, 182), (38, 48, 92), (196, 200, 204), (108, 116, 128)),
    "skyline": ((190, 215, 240), (215, 218, 222), (232, 150, 96), (208, 211, 214), (160, 166, 174)),
    "cloud": ((250, 250, 252), (190, 194, 200), (150, 96, 104), (202, 206, 210), (92, 98, 110)),
    "clouds": (0.45, 0.95, 0.55, 0.3, 0.9),
    "haze": ((190, 210, 235), (205, 209, 214), (120, 96, 104), (204, 207, 210), (148, 154, 162)),
    "haze_length": (260.0, 190.0, 240.0, 42.0, 95.0),
    "haze_limit": (0.70, 0.70, 0.60, 0.72, 0.65),
    "saturation": (1.0, 0.72, 0.85, 0.62, 0.70),
    "wetness": (0.0, 0.0, 0.0, 0.05, 0.38),
    "shadow": (0.55, 0.90, 0.85, 0.94, 0.92),
    "lamps": (False, False, True, True, True),
}
_WEATHERS = {
    name: Weather(name, **{field: values[column] for field, values in _TABLE.items()})
    for column, name in enumerate(WEATHERS)
}
