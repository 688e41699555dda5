"""Draws the objects along the street, and their shadows on the ground."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import cv2
import numpy as np

from rosbag_tools.drive.camera import Points
from rosbag_tools.drive.objects.furniture import paint_post
from rosbag_tools.drive.objects.houses import Houses
from rosbag_tools.drive.objects.people import REACH, paint_person, paint_rider
from rosbag_tools.drive.objects.plants import Plants
from rosbag_tools.drive.objects.vehicles import VEHICLES, paint_vehicle, vehicle
from rosbag_tools.drive.traffic import AHEAD, BEHIND
from rosbag_tools.drive.view import Placed, SceneView
from rosbag_tools.drive.weather import Weather
from rosbag_tools.drive.world import Chunk, Mover, Post, Street

_NEAREST = 1.5  # Metres: thin objects that are nearer are outside the image.
_CLEAR = 1.2  # Metres to each side of the camera that are free of thin objects nearby.
_CLEAR_OF_POSTS, _CLEAR_OF_PERSONS = 14.0, 4.7
_CAST = 0.7  # Remaining light in a shadow above which no shadow is drawn.
_FIGURE_WIDTH = 0.4
_ARM = 3.0  # Maximum length of a post's arm, in metres.


class Painter:
    """Draws the objects of one drive."""

    def __init__(self, seed: int, street: Street, weather: Weather) -> None:
        self._weather = weather
        self._houses = Houses(seed, street.front, weather)
        self._plants = Plants(seed, weather)

    def placed(self, view: SceneView, chunks: Sequence[Chunk], moving: Iterable[Mover]) -> list[Placed]:
        """Returns all visible objects, ready to be drawn."""
        things: list[Placed | None] = []
        for chunk in chunks:
            things += [self._houses.place(view, house) for house in chunk.houses]
            things += [_unless_in_the_way(self._plants.place(view, plant)) for plant in chunk.plants]
            things += [self._plants.place_hedge(view, hedge) for hedge in chunk.hedges]
            things += [_unless_in_the_way(_place_post(view, post)) for post in chunk.posts]
            things += [_place_vehicle(view, car) for car in chunk.parked]
        for mover in moving:
            things.append(_place_vehicle(view, mover) if mover.kind in VEHICLES else _place_figure(view, mover))
        return [thing for thing in things if thing is not None]

    def shadows(self, view: SceneView, chunks: Sequence[Chunk], moving: Iterable[Mover]) -> Iterator[Points]:
        """Yields the outlines of the shadows on the ground."""
        x, up, z = self._weather.towards_sun
        lean = (-x / up, -z / up)
        sunny = self._weather.shadow < _CAST
        for chunk in chunks:
            if view.depth(chunk.start) > AHEAD:
                continue
            for house in chunk.houses if sunny else ():
                yield from self._houses.shadow(house, lean)
            for plant in chunk.plants:
                yield _round(plant.s, plant.z, plant.trunk + plant.height / 2, plant.width * 0.45, lean)
            for car in chunk.parked:
                yield _block(car, lean if sunny else (0.0, 0.0))
        for mover in moving:
            if mover.kind in VEHICLES:
                yield _block(mover, lean if sunny else (0.0, 0.0))
            else:
                yield _round(mover.s, mover.z, 0.0, 0.35, lean)


def _unless_in_the_way(thing: Placed | None) -> Placed | None:
    """Drops an object directly in front of a camera that stands at the kerb."""
    if thing is None:
        return None
    in_the_way = abs(thing.left + thing.right) / 2 < _CLEAR and thing.near < _CLEAR_OF_POSTS
    return None if in_the_way else thing


def _place_post(view: SceneView, post: Post) -> Placed | None:
    depth = view.depth(post.z)
    if depth < _NEAREST or not view.resolves(2 * post.radius, depth):
        return None
    bounds = view.bounds(np.array([[post.s - _ARM, 0, post.z], [post.s + _ARM, 0, post.z]]))
    if bounds is None:
        return None
    seen, columns = bounds
    middle = float(seen[:, 0].mean())
    return Placed(middle - 0.1, middle + 0.1, depth, depth, columns, partial(paint_post, view, post))


def _place_vehicle(view: SceneView, it: Mover) -> Placed | None:
    if not BEHIND < view.depth(it.z) < AHEAD:
        return None
    model = vehicle(it.kind, it.look)
    half, reach = model.width / 2, model.length / 2
    corners = np.array([[it.s + x * half, 0.0, it.z + z * reach] for x in (-1, 1) for z in (-1, 1)])
    bounds = view.bounds(corners)
    if bounds is None:
        return None
    (x, _, depth), columns = bounds[0].T, bounds[1]
    paint = partial(paint_vehicle, view, model, (it.s, it.z), it.yaw)
    return Placed(float(x.min()), float(x.max()), float(depth.min()), float(depth.max()), columns, paint)


def _place_figure(view: SceneView, mover: Mover) -> Placed | None:
    depth = view.depth(mover.z)
    if depth < _NEAREST or not view.resolves(_FIGURE_WIDTH, depth):
        return None
    reach = REACH[mover.kind]
    bounds = view.bounds(np.array([[mover.s - reach, 0, mover.z], [mover.s + reach, 0, mover.z]]))
    if bounds is None:
        return None
    middle = float(bounds[0][:, 0].mean())
    if abs(middle) < _CLEAR and depth < _CLEAR_OF_PERSONS:
        return None
    paint = partial(paint_rider if mover.kind == "rider" else paint_person, view, mover)
    return Placed(middle - 0.28, middle + 0.28, depth, depth, bounds[1], paint)


def _round(s: float, z: float, height: float, radius: float, lean: tuple[float, float]) -> Points:
    """Returns the round shadow of an object `height` metres above a place; `lean` is its shift per metre of height."""
    angles = np.linspace(0, 2 * np.pi, 13)[:-1]
    x, y = s + lean[0] * height, z + lean[1] * height
    return np.stack((x + radius * np.cos(angles), np.zeros(12), y + radius * np.sin(angles)), axis=1)


def _block(it: Mover, lean: tuple[float, float]) -> Points:
    """Returns the convex outline of a vehicle's shadow: below it, and where the sun casts it."""
    model = vehicle(it.kind, it.look)
    half, reach = model.width / 2, model.length / 2
    base = np.array([[it.s + x * half, it.z + y * reach] for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])
    points = np.concatenate((base, base + np.array(lean) * model.height * 0.8)).astype(np.float32)
    hull = np.asarray(cv2.convexHull(points), np.float64)[:, 0]
    return np.stack((hull[:, 0], np.zeros(len(hull)), hull[:, 1]), axis=1)
