"""The pinhole camera of the synthetic drive: projects street coordinates to pixels.

Street coordinates, in metres: `s` to the right of the centreline, `h` above the ground, `z` along the centreline.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]  # N×3: (s, h, z), or in camera coordinates (right, up, depth), in metres.
Polygon = npt.NDArray[np.int32]  # N×2: (column, row).

NEAR = 0.9  # Distance of the near clipping plane, in metres.
_FARTHEST_PIXEL = 30_000  # OpenCV fills polygons exactly only within 16-bit coordinates.


@dataclass(frozen=True, slots=True)
class Bend:
    """The lateral course of the centreline: a sum of two slow sine waves, in metres."""

    amplitudes: tuple[float, float] = (0.0, 0.0)
    lengths: tuple[float, float] = (100.0, 60.0)
    phases: tuple[float, float] = (0.0, 0.0)

    def offset(self, z: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
        """Returns the offset of the centreline to the right at `z`, in metres."""
        (a, b), (m, n), (p, q) = self.amplitudes, self.lengths, self.phases
        return np.asarray(a * np.sin(np.asarray(z) / m + p) + b * np.sin(np.asarray(z) / n + q))

    def slope(self, z: float) -> float:
        """Returns the slope of the centreline at `z` (tangent of its heading)."""
        (a, b), (m, n), (p, q) = self.amplitudes, self.lengths, self.phases
        return float(a / m * np.cos(z / m + p) + b / n * np.cos(z / n + q))


@dataclass(frozen=True, slots=True)
class Camera:
    """Position and projection of the camera, which looks along the centreline."""

    width: int
    height: int
    focal: float  # Focal length in pixels.
    centre: float  # The column straight ahead.
    horizon: float  # The row of the horizon.
    s: float
    h: float
    z: float
    bend: Bend

    def see(self, points: Points) -> Points:
        """Converts street coordinates N×3 to camera coordinates N×3 (right, up, depth)."""
        depth = points[:, 2] - self.z
        sideways = self.bend.offset(points[:, 2]) - self.bend.offset(self.z) - self.bend.slope(self.z) * depth
        return np.stack((points[:, 0] + sideways - self.s, points[:, 1] - self.h, depth), axis=1)

    def project(self, seen: Points) -> npt.NDArray[np.float64]:
        """Projects camera coordinates N×3 in front of the camera to (column, row), N×2."""
        scale = self.focal / seen[:, 2]
        return np.stack((self.centre + seen[:, 0] * scale, self.horizon - seen[:, 1] * scale), axis=1)

    def polygon(self, seen: Points) -> Polygon | None:
        """Projects a polygon in camera coordinates, clipped at the near plane; None if it is outside the image."""
        if seen[:, 2].min() < NEAR:
            seen = cut_near(seen)
            if len(seen) == 0:
                return None
        return self.rounded(self.project(seen))

    def rounded(self, pixels: npt.NDArray[np.float64]) -> Polygon | None:
        """Rounds pixels N×2 to integers; returns None if the polygon is outside the image."""
        (left, top), (right, bottom) = pixels.min(axis=0), pixels.max(axis=0)
        if right < 0 or bottom < 0 or left >= self.width or top >= self.height:
            return None
        return np.rint(np.clip(pixels, -_FARTHEST_PIXEL, _FARTHEST_PIXEL)).astype(np.int32)

    def scaled(self, factor: float) -> "Camera":
        """Returns the same view with `factor` times the pixels in each direction."""
        scaled = {name: getattr(self, name) * factor for name in ("focal", "centre", "horizon")}
        return replace(self, width=int(self.width * factor), height=int(self.height * factor), **scaled)


def cut_near(seen: Points) -> Points:
    """Clips a polygon at the near plane (Sutherland-Hodgman for one plane)."""
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
