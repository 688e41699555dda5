"""Convex solids with decals, the parts of vehicles."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.camera import Points
from rosbag_tools.drive.weather import Triple

_TYRE = (30.0, 30.0, 32.0)
_WHEEL = ((1.0, _TYRE), (0.58, (150.0, 152.0, 155.0)), (0.2, (60.0, 60.0, 62.0)))  # Discs: share of the radius, colour.
_TYRE_WIDTH = 0.24

_Rectangle = tuple[float, float, float, float]  # Left, right, rear, front.


@dataclass(frozen=True, slots=True)
class Face:
    """A flat convex polygon of a solid: points N×3 as (right, up, ahead), its colour and its outward unit normal."""

    points: Points
    colour: Triple
    normal: npt.NDArray[np.float64]
    glow: bool = False  # The face glows when lamps are on.


@dataclass(frozen=True, slots=True)
class Solid:
    """Faces in drawing order; solids of a layer are drawn from far to near, lower layers first."""

    layer: int
    centre: npt.NDArray[np.float64]
    faces: tuple[Face, ...]


class Block:
    """Builds a hexahedron from its lower rectangle `low` and upper rectangle `high`, (left, right, rear, front)."""

    def __init__(
        self,
        colour: Triple,
        low: _Rectangle,
        high: _Rectangle,
        heights: tuple[float, float],
    ) -> None:
        left, right, rear, front = low
        l, r, b, f = high  # noqa: E741 - the same four at the top.
        y0, y1 = heights
        self._quads = {
            "rear": self._quad((left, y0, rear), (right, y0, rear), (r, y1, b), (l, y1, b)),
            "front": self._quad((right, y0, front), (left, y0, front), (l, y1, f), (r, y1, f)),
            "left": self._quad((left, y0, front), (left, y0, rear), (l, y1, b), (l, y1, f)),
            "right": self._quad((right, y0, rear), (right, y0, front), (r, y1, f), (r, y1, b)),
            "top": self._quad((l, y1, b), (r, y1, b), (r, y1, f), (l, y1, f)),
        }
        self._centre = np.mean([quad.mean(axis=0) for quad in self._quads.values()], axis=0)
        self._faces: list[Face] = []
        for quad in self._quads.values():
            self._add(quad, colour)

    def decal(
        self,
        side: str,
        across: tuple[float, float],
        upward: tuple[float, float],
        colour: Triple,
        *,
        glow: bool = False,
    ) -> None:
        """Adds a rectangle on a side; `across` and `upward` are shares of the side, from the lower left seen from outside."""
        a, b, c, d = self._quads[side]
        corners = []
        for u, v in ((0, 0), (1, 0), (1, 1), (0, 1)):
            x, y = across[u], upward[v]
            corners.append((a * (1 - x) + b * x) * (1 - y) + (d * (1 - x) + c * x) * y)
        self._add(np.array(corners), colour, glow=glow)

    def solid(self, layer: int) -> Solid:
        """Returns the finished solid."""
        return Solid(layer, self._centre, tuple(self._faces))

    @staticmethod
    def _quad(*corners: Triple) -> Points:
        return np.array(corners, np.float64)

    def _add(self, points: Points, colour: Triple, *, glow: bool = False) -> None:
        normal = _normal(points)
        if float(normal @ (points[0] - self._centre)) < 0:
            points, normal = points[::-1].copy(), -normal
        self._faces.append(Face(points, colour, normal, glow))


def wheels(half: float, radius: float, axles: tuple[float, ...], layer: int) -> list[Solid]:
    """Returns the wheels: blocks under the body, visible from the ends, and discs two layers above for the sides."""
    solids = []
    for axle in axles:
        for side in (-1.0, 1.0):
            inner, outer = sorted((side * (half - _TYRE_WIDTH), side * half))
            sole = (inner, outer, axle - radius * 0.7, axle + radius * 0.7)
            solids.append(Block(_TYRE, sole, sole, (0.0, radius)).solid(layer))
            hub = np.array([side * (half + 0.012), radius, axle])
            solids.append(Solid(layer + 2, hub, tuple(_disc(hub, radius * size, colour) for size, colour in _WHEEL)))
    return solids


def _disc(hub: npt.NDArray[np.float64], radius: float, colour: Triple) -> Face:
    side = float(np.sign(hub[0]))
    angles = -side * np.linspace(0, 2 * np.pi, 15)[:-1]
    circle = hub + radius * np.stack((np.zeros(14), np.sin(angles), np.cos(angles)), axis=1)
    return Face(circle, colour, np.array([side, 0.0, 0.0]))


def _normal(points: Points) -> npt.NDArray[np.float64]:
    normal = np.cross(points[1] - points[0], points[2] - points[0])
    return np.asarray(normal / max(float(np.linalg.norm(normal)), 1e-9))
