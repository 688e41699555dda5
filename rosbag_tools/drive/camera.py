"""The pinhole camera of the synthetic drive: from street coordinates to pixels.

Street coordinates, in metres: `s` to the right of the centreline, `h` above the ground, `z` along the centreline.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]  # N×3, as (s, h, z) or, seen from the camera, (right, up, depth).
Polygon = npt.NDArray[np.int32]  # N×2, as (column, row).

NEAR = 0.9  # What is nearer than this many metres is cut off.
_FARTHEST_PIXEL = 30_000  # OpenCV's fills are exact within 16 bits of pixels.


@dataclass(frozen=True, slots=True)
class Bend:
    """How the centreline swings to the side: a sum of two slow sine waves, in metres."""

    amplitudes: tuple[float, float] = (0.0, 0.0)
    lengths: tuple[float, float] = (100.0, 60.0)
    phases: tuple[float, float] = (0.0, 0.0)

    def offset(self, z: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
        """How far to the right the centreline lies at `z`."""
        (a, b), (m, n), (p, q) = self.amplitudes, self.lengths, self.phases
        return np.asarray(a * np.sin(np.asarray(z) / m + p) + b * np.sin(np.asarray(z) / n + q))

    def slope(self, z: float) -> float:
        """The tangent of the centreline's heading at `z`."""
        (a, b), (m, n), (p, q) = self.amplitudes, self.lengths, self.phases
        return float(a / m * np.cos(z / m + p) + b / n * np.cos(z / n + q))


@dataclass(frozen=True, slots=True)
class Camera:
    """Where the camera stands and what it sees; it looks along the centreline."""

    width: int
    height: int
    focal: float  # Pixels.
    centre: float  # The column straight ahead.
    horizon: float  # The row of the horizon.
    s: float
    h: float
    z: float
    bend: Bend

    def see(self, points: Points) -> Points:
        """Street coordinates N×3 to (right, up, depth) N×3 as seen from the camera."""
        depth = points[:, 2] - self.z
        sideways = self.bend.offset(points[:, 2]) - self.bend.offset(self.z) - self.bend.slope(self.z) * depth
        return np.stack((points[:, 0] + sideways - self.s, points[:, 1] - self.h, depth), axis=1)

    def project(self, seen: Points) -> npt.NDArray[np.float64]:
        """Seen points in front of the camera, N×3, to (column, row), N×2."""
        scale = self.focal / seen[:, 2]
        return np.stack((self.centre + seen[:, 0] * scale, self.horizon - seen[:, 1] * scale), axis=1)

    def polygon(self, seen: Points) -> Polygon | None:
        """A seen polygon, cut at the near plane and rounded to pixels; None where nothing of it is in the picture."""
        if seen[:, 2].min() < NEAR:
            seen = cut_near(seen)
            if len(seen) == 0:
                return None
        return self.rounded(self.project(seen))

    def rounded(self, pixels: npt.NDArray[np.float64]) -> Polygon | None:
        """Pixels N×2 as integers; None where the polygon misses the picture."""
        (left, top), (right, bottom) = pixels.min(axis=0), pixels.max(axis=0)
        if right < 0 or bottom < 0 or left >= self.width or top >= self.height:
            return None
        return np.rint(np.clip(pixels, -_FARTHEST_PIXEL, _FARTHEST_PIXEL)).astype(np.int32)

    def scaled(self, factor: float) -> "Camera":
        """The same view with `factor` times the pixels in each direction."""
        return Camera(
            int(self.width * factor),
            int(self.height * factor),
            self.focal * factor,
            self.centre * factor,
            self.horizon * factor,
            self.s,
            self.h,
            self.z,
            self.bend,
        )


def cut_near(seen: Points) -> Points:
    """What remains of a polygon in front of the near plane (Sutherland and Hodgman, one plane)."""
    kept: list[Points] = []
    for index in range(len(seen)):
        here, following = seen[index], seen[(index + 1) % len(seen)]
        inside = here[2] >= NEAR
        if inside:
            kept.append(here)
        if inside != (following[2] >= NEAR):
            share = (NEAR - here[2]) / (following[2] - here[2])
            kept.append(here + share * (following - here))
    return np.array(kept).reshape(-1, 3)
