"""The context in which a frame is drawn: canvas, camera and weather, and the order in which its objects are drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.camera import NEAR, Camera, Points
from rosbag_tools.drive.canvas import Canvas, Image
from rosbag_tools.drive.weather import Triple, Weather

CLOSEST = 2.5  # Distance in metres below which standing objects are outside the image.
FULL_WIDTH = 1936  # Image width for which sizes in pixels are given.
_THINNEST = 3.0  # Width in pixels at full width below which a camera does not resolve an object.


@dataclass(frozen=True, slots=True)
class SceneView:
    """Everything that is needed to draw a frame."""

    canvas: Canvas
    camera: Camera
    weather: Weather

    def depth(self, z: float) -> float:
        """Returns the distance of `z` ahead of the camera, in metres."""
        return z - self.camera.z

    def resolves(self, width: float, depth: float) -> bool:
        """Returns True if an object of `width` metres is visible at `depth` metres."""
        return width * self.camera.focal / depth >= _THINNEST * self.camera.width / FULL_WIDTH

    def bounds(self, points: Points) -> tuple[Points, tuple[float, float]] | None:
        """Returns points in camera coordinates and the columns that they cover; None if they are outside the image."""
        seen = self.camera.see(points)
        if seen[:, 2].max() < NEAR:
            return None
        columns = self.camera.centre + self.camera.focal * seen[:, 0] / np.maximum(seen[:, 2], NEAR)
        low, high = float(columns.min()), float(columns.max())
        if high < 0 or low > self.camera.width:
            return None
        return seen, (low, high)

    def face(self, corners: Points, colour: npt.ArrayLike, normal: Triple, owner: int) -> None:
        """Draws a flat convex polygon of street points in one colour, with the haze of its nearest point."""
        depth = max(float(corners[:, 2].min()) - self.camera.z, NEAR)
        polygon = self.camera.polygon(self.camera.see(corners))
        self.canvas.fill(polygon, self.weather.paint(colour, depth, normal), owner)

    def drape(self, picture: Image, corners: Points, owner: int) -> None:
        """Draws an image with its upper left, upper right, lower right and lower left at four street points."""
        pixels = self.camera.project(self.camera.see(corners))
        self.canvas.drape(picture, pixels, self.camera.rounded(pixels), owner)


@dataclass(frozen=True, slots=True)
class Placed:
    """A visible object: its ground area in camera coordinates, its image columns, and how to draw it."""

    left: float  # Metres to the right of the camera.
    right: float
    near: float  # Metres ahead of it.
    far: float
    columns: tuple[float, float]
    paint: Callable[[], None]


def far_to_near(things: Sequence[Placed]) -> list[Placed]:
    """Returns the objects in drawing order: an object comes after everything that it hides.

    Of two objects that share columns, the one that is completely farther ahead comes first, otherwise the one that is
    completely farther to the side. If objects hide each other in a cycle, the farthest comes first.
    """
    if not things:
        return []
    left, right, near, far = (
        np.array([getattr(thing, name) for thing in things]) for name in ("left", "right", "near", "far")
    )
    first, last = np.array([thing.columns for thing in things]).T
    meet = (first[:, None] < last[None, :]) & (first[None, :] < last[:, None])
    ahead = near[:, None] >= far[None, :]
    beside = ((left[:, None] >= right[None, :]) & (left[:, None] > 0)) | (
        (right[:, None] <= left[None, :]) & (right[:, None] < 0)
    )
    neither = ~ahead & ~ahead.T
    unclear = neither & ~beside & ~beside.T
    centre = near + far
    before = ahead & ~ahead.T | (neither & beside & ~beside.T) | (unclear & (centre[:, None] > centre[None, :]))
    before &= meet
    np.fill_diagonal(before, val=False)
    waiting = before.sum(axis=0).astype(np.int64)
    distance = near.copy()
    order = []
    for _ in range(len(things)):
        free = np.where(waiting == 0, distance, -np.inf)
        at = int(np.argmax(free))
        if free[at] == -np.inf:
            at = int(np.argmax(distance))
        order.append(things[at])
        distance[at] = -np.inf
        waiting[at] = 1 << 40
        waiting -= before[at]
    return order
