"""One look at the street: the canvas, the camera and the weather that everything in a frame is painted with."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.camera import NEAR, Camera, Points
from rosbag_tools.drive.canvas import Canvas, Image
from rosbag_tools.drive.weather import Triple, Weather

CLOSEST = 2.5  # Metres from which standing things are painted: nearer, they are beside the picture.
FULL_WIDTH = 1936  # Sizes in pixels are told for this width.
_THINNEST = 3.0  # Pixels at full width: what is thinner a camera does not resolve.


@dataclass(frozen=True, slots=True)
class View:
    """What a painter needs to paint a frame."""

    canvas: Canvas
    camera: Camera
    weather: Weather

    def depth(self, z: float) -> float:
        """How far ahead of the camera `z` is, in metres."""
        return z - self.camera.z

    def resolves(self, width: float, depth: float) -> bool:
        """Whether what is `width` metres wide shows at `depth` metres."""
        return width * self.camera.focal / depth >= _THINNEST * self.camera.width / FULL_WIDTH

    def bounds(self, points: Points) -> tuple[Points, tuple[float, float]] | None:
        """Street points as seen, and the columns they cover; None where they are behind or beside the picture."""
        seen = self.camera.see(points)
        if seen[:, 2].max() < NEAR:
            return None
        columns = self.camera.centre + self.camera.focal * seen[:, 0] / np.maximum(seen[:, 2], NEAR)
        low, high = float(columns.min()), float(columns.max())
        if high < 0 or low > self.camera.width:
            return None
        return seen, (low, high)

    def face(self, corners: Points, colour: npt.ArrayLike, normal: Triple, owner: int) -> None:
        """Paint a flat convex polygon of street points in one colour, with the haze of its nearest point."""
        depth = max(float(corners[:, 2].min()) - self.camera.z, NEAR)
        polygon = self.camera.polygon(self.camera.see(corners))
        self.canvas.fill(polygon, self.weather.paint(colour, depth, normal), owner)

    def drape(self, picture: Image, corners: Points, owner: int) -> None:
        """Paint a picture with its upper left, upper right, lower right and lower left at four street points."""
        pixels = self.camera.project(self.camera.see(corners))
        self.canvas.drape(picture, pixels, self.camera.rounded(pixels), owner)
