"""Draws houses: a textured facade along the street, a side wall towards the camera, and a roof."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from rosbag_tools.drive.camera import Points
from rosbag_tools.drive.canvas import BUILDING, Image
from rosbag_tools.drive.objects import textures
from rosbag_tools.drive.view import CLOSEST, Placed, SceneView
from rosbag_tools.drive.weather import TOWARDS_CAMERA, Weather
from rosbag_tools.drive.world import House

_DEPTH = 11.0  # Depth of a house, in metres.
_SEEN_TO = 190.0  # Distance up to which houses are drawn, in metres.
_FACES = 6
_WIDE = 13.0  # Width in metres from which a facade has six windows per storey instead of three.
_TILES = ((150, 74, 56), (92, 84, 82), (120, 96, 80))


class Houses:
    """The houses of one drive; `front` is their distance from the centreline, in metres."""

    def __init__(self, seed: int, front: float, weather: Weather) -> None:
        self._seed = seed
        self._front = front
        self._weather = weather
        self._walls = [textures.wall(f"face/{seed}/{at}", weather) for at in range(_FACES)]
        self._facades: dict[tuple[int, int, int], list[Image]] = {}

    def place(self, view: SceneView, house: House) -> Placed | None:
        """Returns a house ready to be drawn; None if it is outside the image."""
        if view.depth(house.near) > _SEEN_TO or view.depth(house.far) < CLOSEST + 1.0:
            return None
        front, back = self._fronts(house)
        footprint = np.array([[s, 0.0, z] for s in (front, back) for z in (house.near, house.far)])
        bounds = view.bounds(footprint)
        if bounds is None:
            return None
        seen, columns = bounds
        sides = seen[:2, 0]
        left = float(sides.min()) - (_DEPTH if house.side < 0 else 0.0)
        right = float(sides.max()) + (_DEPTH if house.side > 0 else 0.0)
        paint = partial(self._paint, view, house)
        return Placed(left, right, float(seen[0, 2]), float(seen[1, 2]), columns, paint)

    def shadow(self, house: House, lean: tuple[float, float]) -> Iterator[Points]:
        """Yields the outline of a house's shadow; `lean` is the shift (right, ahead) of a shadow per metre of height."""
        height = house.storeys * textures.STOREY
        shift, slide = lean[0] * height, lean[1] * height
        if shift * house.side < 0:
            front = self._fronts(house)[0]
            base = np.array([[front, 0, house.near], [front, 0, house.far]])
            yield np.concatenate((base, (base + np.array((shift, 0.0, slide)))[::-1]))

    def _fronts(self, house: House) -> tuple[float, float]:
        return house.side * self._front, house.side * (self._front + _DEPTH)

    def _paint(self, view: SceneView, house: House) -> None:
        near = max(house.near, view.camera.z + CLOSEST)
        if house.roof:
            self._paint_roof(view, house, near)
        if view.depth(house.near) > CLOSEST:
            self._paint_wall(view, house)
        self._paint_front(view, house, near)

    def _paint_roof(self, view: SceneView, house: House, near: float) -> None:
        front, back = self._fronts(house)
        ridge, eaves = (front + back) / 2, house.storeys * textures.STOREY
        top = eaves + house.roof
        slope = np.array([[front, eaves, near], [front, eaves, house.far], [ridge, top, house.far], [ridge, top, near]])
        view.face(slope, _TILES[house.face % len(_TILES)], (-house.side * 0.5, 0.86, 0.0), BUILDING)
        if view.depth(house.near) > CLOSEST:
            gable = np.array([[front, eaves, near], [back, eaves, near], [ridge, top, near]])
            colour = self._walls[house.face % _FACES][64, 64] / max(self._weather.ambient)
            view.face(gable, colour, TOWARDS_CAMERA, BUILDING)

    def _paint_wall(self, view: SceneView, house: House) -> None:
        (front, back), top = self._fronts(house), house.storeys * textures.STOREY
        corners = np.array([[front, top], [back, top], [back, 0.0], [front, 0.0]])
        picture = self._weather.veiled(self._walls[house.face % _FACES], view.depth(house.near))
        view.drape(picture, np.column_stack((corners, np.full(4, house.near))), BUILDING)

    def _paint_front(self, view: SceneView, house: House, near: float) -> None:
        front, top = self._fronts(house)[0], house.storeys * textures.STOREY
        length = house.far - house.near
        pixels = view.camera.focal * top / max(view.depth(near), 4.0)
        picture = textures.level(self._facade(house, 6 if length > _WIDE else 3), pixels)
        width = picture.shape[1]
        cut = int(np.ceil((near - house.near) / length * width))
        if cut >= width:
            return
        start = house.near + cut / width * length
        depths = np.linspace(view.depth(start), view.depth(house.far), width - cut)
        corners = np.array([[front, top, start], [front, top, house.far], [front, 0, house.far], [front, 0, start]])
        view.drape(self._weather.veiled(picture[:, cut:], depths), corners, BUILDING)

    def _facade(self, house: House, bays: int) -> list[Image]:
        key = (house.face % _FACES, house.storeys, bays)
        if key not in self._facades:
            picture = textures.facade(f"face/{self._seed}/{key[0]}", self._weather, house.storeys, bays)
            self._facades[key] = textures.pyramid(picture)
        return self._facades[key]
