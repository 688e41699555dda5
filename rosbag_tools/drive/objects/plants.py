"""Draws trees, bushes and hedges."""

from functools import partial

import cv2
import numpy as np

from rosbag_tools.drive.canvas import VEGETATION, Image
from rosbag_tools.drive.objects import textures
from rosbag_tools.drive.view import CLOSEST, Placed, SceneView
from rosbag_tools.drive.weather import TOWARDS_CAMERA, Weather
from rosbag_tools.drive.world import Hedge, Plant

_SEEN_TO = 130.0  # Distance up to which plants are drawn, in metres.
_SHORTEST = 0.5  # Shortest hedge that is drawn, in metres.
_HEDGE_DEPTH = 0.8
_TRUNK = (96, 78, 62)
_CLIPPED = (76, 100, 50)


class Plants:
    """The plants of one drive."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self._weather = weather
        self._crowns = [textures.foliage(f"crown/{seed}/{at}", weather, tree=True) for at in range(5)]
        self._bushes = [textures.foliage(f"bush/{seed}/{at}", weather, tree=False) for at in range(3)]
        self._hedges = [textures.pyramid(textures.hedge(f"hedge/{seed}/{at}", weather)) for at in range(2)]

    def place(self, view: SceneView, plant: Plant) -> Placed | None:
        """Returns a tree or bush ready to be drawn; None if it is outside the image, or too far or small to be seen."""
        depth = view.depth(plant.z)
        if not CLOSEST < depth < _SEEN_TO or not view.resolves(plant.width, depth):
            return None
        half = plant.width / 2
        bounds = view.bounds(np.array([[plant.s - half, 0, plant.z], [plant.s + half, 0, plant.z]]))
        if bounds is None:
            return None
        seen, columns = bounds
        middle, reach = float(seen[:, 0].mean()), 0.3 if plant.trunk else half * 0.6
        return Placed(middle - reach, middle + reach, depth, depth, columns, partial(self._paint, view, plant))

    def place_hedge(self, view: SceneView, hedge: Hedge) -> Placed | None:
        """Returns a hedge ready to be drawn; None if it is outside the image, or too far or short to be seen."""
        near = max(hedge.near, view.camera.z + CLOSEST)
        if hedge.far - near < _SHORTEST or view.depth(near) > _SEEN_TO:
            return None
        bounds = view.bounds(np.array([[hedge.s, 0, near], [hedge.s, 0, hedge.far]]))
        if bounds is None:
            return None
        seen, columns = bounds
        low, high = float(seen[:, 0].min()) - 0.2, float(seen[:, 0].max()) + 0.2
        paint = partial(self._paint_hedge, view, hedge, near)
        return Placed(low, high, float(seen[0, 2]), float(seen[1, 2]), columns, paint)

    def _paint(self, view: SceneView, plant: Plant) -> None:
        depth = view.depth(plant.z)
        scale = view.camera.focal / depth
        middle, foot = view.camera.project(view.camera.see(np.array([[plant.s, 0.0, plant.z]])))[0].tolist()
        if plant.trunk:
            low = max(0.6, 0.054 * plant.width * scale)
            high = max(0.35, 0.0315 * plant.width * scale)
            top = foot - (plant.trunk + plant.height * 0.4) * scale
            trunk = np.array([[middle - low, foot], [middle + low, foot], [middle + high, top], [middle - high, top]])
            view.canvas.fill(view.camera.rounded(trunk), self._weather.paint(_TRUNK, depth), VEGETATION)
        picture, shape = self._look(plant, plant.height * scale)
        corner = (middle - plant.width / 2 * scale, foot - (plant.trunk + plant.height) * scale)
        stretch = (plant.width * scale / shape.shape[1], plant.height * scale / shape.shape[0])
        view.canvas.stamp(self._weather.veiled(picture, depth), shape, corner, stretch, VEGETATION)

    def _look(self, plant: Plant, pixels: float) -> tuple[Image, Image]:
        """Returns foliage and shape of a plant, reduced to about `pixels` height to avoid flicker."""
        looks = self._crowns if plant.trunk else self._bushes
        picture, shape = looks[plant.look % len(looks)]
        step = int(picture.shape[0] / max(8.0, pixels))
        if step <= 1:
            return picture, shape
        size = (picture.shape[1] // step, picture.shape[0] // step)
        small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
        outline = cv2.resize(shape, size, interpolation=cv2.INTER_NEAREST)
        return np.asarray(small, np.uint8), np.asarray(outline, np.uint8)

    def _paint_hedge(self, view: SceneView, hedge: Hedge, near: float) -> None:
        top, back = hedge.height, hedge.s + (_HEDGE_DEPTH if hedge.s > 0 else -_HEDGE_DEPTH)
        end = np.array([[hedge.s, 0, near], [back, 0, near], [back, top, near], [hedge.s, top, near]])
        view.face(end, _CLIPPED, TOWARDS_CAMERA, VEGETATION)
        pixels = view.camera.focal * top / max(view.depth(near), 4.0)
        picture = textures.level(self._hedges[hedge.look % len(self._hedges)], pixels)
        depths = np.linspace(view.depth(near), view.depth(hedge.far), picture.shape[1])
        corners = np.array([[hedge.s, h, z] for h, z in ((top, near), (top, hedge.far), (0, hedge.far), (0, near))])
        view.drape(self._weather.veiled(picture, depths), corners, VEGETATION)
