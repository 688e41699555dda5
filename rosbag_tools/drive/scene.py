"""Renders the synthetic drive: a street seen from a car or from the kerb, with the true class of every pixel and true boxes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import floor, sin
from random import Random

import cv2
import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.camera import Camera, Points
from rosbag_tools.drive.canvas import CLASSES, NONE, ROAD, SIDEWALK, SKY, VEGETATION, Canvas, Image
from rosbag_tools.drive.objects import textures
from rosbag_tools.drive.objects.furniture import paint_post
from rosbag_tools.drive.objects.ground import FARTHEST, Ground
from rosbag_tools.drive.objects.houses import Houses
from rosbag_tools.drive.objects.people import REACH, paint_person, paint_rider
from rosbag_tools.drive.objects.plants import Plants
from rosbag_tools.drive.objects.vehicles import VEHICLES, paint_vehicle, vehicle
from rosbag_tools.drive.traffic import AHEAD, BEHIND, Ego, movers
from rosbag_tools.drive.view import FULL_WIDTH, Placed, SceneView, far_to_near
from rosbag_tools.drive.weather import WEATHERS, Weather, weather
from rosbag_tools.drive.world import CHUNK, Chunk, Mover, Post, Street, chunk, plan
from rosbag_tools.records import Box

__all__ = ["CLASSES", "HEIGHT_SHARE", "OBJECTS", "PRESENCE", "WEATHERS", "Box", "Drive", "SceneFrame"]

OBJECTS = {"vehicle": ("car", "truck", "bus"), "person": ("person", "rider")}  # The drive's classes per detector class.
PRESENCE = ("no vehicle", "vehicle")  # Classes of a fixed camera that reports whether a vehicle is visible.
# The vehicle (see OBJECTS) may be parked. The visible part of its box must have at least this share of the frame's height:
# a car has this height from 7 m on, and a bus from 15 m on. Smaller boxes are almost always visible in the street.
HEIGHT_SHARE = 0.25
_NEAREST = 1.5  # Metres: thin objects that are nearer are outside the image.
_CLEAR = 1.2  # Metres to each side of the camera that are free of thin objects nearby.
_CLEAR_OF_POSTS, _CLEAR_OF_PERSONS = 14.0, 4.7
_CAST = 0.7  # No shadow is drawn if more than this share of the light remains in it.
_FIGURE_WIDTH = 0.4
_ARM = 3.0  # Maximum length of a post's arm, in metres.


@dataclass(frozen=True, slots=True)
class SceneFrame:
    """A rendered frame: `rgb` H×W×3 uint8, `class_ids` H×W uint8 (indices of `CLASSES`), and boxes from far to near.

    The boxes enclose the visible parts of vehicles, persons and riders.
    """

    rgb: Image
    class_ids: Image
    boxes: tuple[Box, ...]


class Drive:
    """An endless drive along a street, generated from a seed.

    The class rider is a person together with the bicycle. Signs and lamps belong to the class pole. The bonnet of the
    camera's car has the class none. With `static_camera` the camera stands at the kerb.

    Raises:
        UnknownNameError: the weather is unknown.
    """

    def __init__(
        self,
        seed: int,
        *,
        width: int = 1936,
        height: int = 1216,
        weather: str = "clear",
        static_camera: bool = False,
    ) -> None:
        rng = Random(f"drive/{seed}")
        self._size = (width, height)
        self._scale = width / FULL_WIDTH
        self._street = plan(seed)
        self._weather = _weather(weather, seed)
        self._static = static_camera
        lane = rng.randrange(self._street.lanes)
        kerb = self._street.road + 0.35
        own_lane = (lane + 0.5) * self._street.lane_width + rng.uniform(-0.15, 0.15)
        self._ego = Ego(kerb if static_camera else own_lane, 0.0 if static_camera else self._street.speed)
        self._focal = rng.uniform(1350, 1650) * self._scale
        self._mast = rng.uniform(1.35, 1.75)
        self._horizon = height * rng.uniform(0.42, 0.48)
        self._bonnet = rng.uniform(0.035, 0.085)
        self._paint = rng.choice(((30, 32, 36), (120, 122, 126), (90, 30, 32), (34, 52, 84), (170, 172, 174)))
        self._shake = rng.uniform(0, 6.3)
        self._sky = textures.sky(seed, self._weather, int(height * 0.5) + 2, width)
        self._ground = Ground(self._street, self._weather, textures.asphalt(seed))
        self._painter = Painter(seed, self._street, self._weather)
        self._rain = Rain(seed)

    @property
    def focal_px(self) -> float:
        """Focal length of the camera in pixels. The principal point is on the horizon, not in the centre."""
        return float(self._focal)

    def render(self, time_s: float) -> SceneFrame:
        """Renders the frame at `time_s` seconds. The result depends only on it and on the arguments of the drive."""
        camera = self._camera(time_s)
        canvas = Canvas(*self._size)
        view = SceneView(canvas, camera, self._weather)
        first, last = floor((camera.z - 12.0) / CHUNK), floor((camera.z + FARTHEST) / CHUNK)
        chunks = [chunk(self._street, index) for index in range(first, last + 1)]
        moving = list(movers(self._street, self._ego, time_s))
        self._paint_sky(canvas, camera)
        self._ground.paint(canvas, camera, chunks, self._painter.shadows(view, chunks, moving))
        for thing in far_to_near(self._painter.placed(view, chunks, moving)):
            thing.paint()
        if not self._static:
            self._paint_bonnet(canvas)
        boxes = tuple(_boxes(canvas))
        self._rain.fall(view, time_s)
        return SceneFrame(canvas.rgb, canvas.class_ids(), boxes)

    def _camera(self, time_s: float) -> Camera:
        width, height = self._size
        z = self._ego.z(time_s)
        pitch = 0.0 if self._static else 2.2 * sin(time_s * 5.1 + self._shake) + 1.4 * sin(time_s * 11.7)
        return Camera(
            width,
            height,
            self._focal,
            width * (0.56 if self._static else 0.5),
            self._horizon + pitch * self._scale,
            self._ego.s,
            self._mast,
            z,
            self._street.bend,
        )

    def _paint_sky(self, canvas: Canvas, camera: Camera) -> None:
        width = self._size[0]
        bottom = min(int(camera.horizon) + 2, canvas.rgb.shape[0])
        turned = floor(width / 2 + camera.focal * self._street.bend.slope(camera.z))
        left = min(max(turned, 0), self._sky.shape[1] - width)
        sky = self._sky[-bottom:, left : left + width]
        canvas.rgb[:bottom] = np.pad(sky, ((bottom - len(sky), 0), (0, 0), (0, 0)), mode="edge")
        canvas.owners[:bottom] = SKY
        below = int(camera.horizon + camera.focal * camera.h / FARTHEST * 1.6) + 2
        hills = camera.focal * 0.012 * (1 + np.sin((np.arange(33) * width / 32 + turned) * 0.004 / self._scale))
        colour = self._weather.paint((78, 100, 62), FARTHEST)
        for at in range(32):
            x0, x1 = at * width // 32, (at + 1) * width // 32
            base = camera.horizon - camera.focal * 0.008
            outline = np.array([[x0, base - hills[at]], [x1, base - hills[at + 1]], [x1, below], [x0, below]], np.int32)
            canvas.fill(outline, colour, VEGETATION)

    def _paint_bonnet(self, canvas: Canvas) -> None:
        width, height = self._size
        across = np.linspace(-0.05, 1.05, 33)
        for share, light in ((1.0, 0.8), (0.82, 1.05), (0.5, 0.92)):
            arch = height * (1 - self._bonnet * share * (1 - (2 * across - 1) ** 2 * 0.45))
            top = np.stack((across * width, arch), axis=1)
            outline = np.concatenate((top, [[width * 1.05, height + 2], [-width * 0.05, height + 2]])).astype(np.int32)
            paint = [value * light for value in self._paint]
            canvas.fill(outline, self._weather.paint(paint, 0.0, (0.0, 1.0, 0.0)), NONE)


_weather = weather  # A parameter with the same name hides the function.


def _boxes(canvas: Canvas) -> list[Box]:
    """Returns the bounding boxes of the visible parts of the objects on a canvas."""
    boxes = []
    flat = canvas.owners.ravel()
    places = np.flatnonzero(flat >= len(CLASSES))
    rows, columns = np.divmod(places.astype(np.int32), np.int32(canvas.owners.shape[1]))
    owners = flat[places].astype(np.intp) - len(CLASSES)
    count = len(canvas.things)
    low = np.full((count, 2), 1 << 30, np.int32)
    high = np.full((count, 2), -1, np.int32)
    for axis, values in enumerate((columns, rows)):
        np.minimum.at(low[:, axis], owners, values)
        np.maximum.at(high[:, axis], owners, values)
    pixels = np.bincount(owners, minlength=count)
    for at in np.flatnonzero(pixels >= 12).tolist():  # Fewer pixels are not recognizable.
        x, y = low[at].tolist()
        right, bottom = high[at].tolist()
        boxes.append(Box(CLASSES[canvas.things[at]], float(x), float(y), float(right - x + 1), float(bottom - y + 1)))
    return boxes


_DAMP = 0.1  # Wetness below which the ground does not reflect.
_DROPS = 0.0015  # Share of pixels, at a quarter of the resolution, where a streak begins.
_FIELD = (700, 900)


class Rain:
    """The rain of one drive, drawn over finished images."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        drops = np.random.default_rng([seed, 11]).random(_FIELD, np.float32) < _DROPS
        streaks = np.asarray(cv2.blur(drops.astype(np.float32), (1, 15))) * 390
        self._streaks: Image = np.clip(streaks, 0, 60).astype(np.uint8)

    def fall(self, view: SceneView, time_s: float) -> None:
        """Adds the rain at a time to a finished image, if it rains; the classes of the pixels do not change."""
        if view.weather.wetness <= _DAMP:
            return
        _mirror(view)
        height, width = view.canvas.owners.shape
        shifts = np.random.default_rng([self._seed, int(time_s * 1000) & 0xFFFFFFFF]).integers(0, _FIELD[0], 2).tolist()
        streaks = np.roll(self._streaks, shifts, (0, 1))
        layer = cv2.resize(streaks, (width, height), interpolation=cv2.INTER_LINEAR)
        cv2.add(view.canvas.rgb, cv2.cvtColor(layer, cv2.COLOR_GRAY2RGB), dst=view.canvas.rgb)


def _mirror(view: SceneView) -> None:
    top = int(view.camera.horizon) + 1
    rgb = view.canvas.rgb
    ground = rgb[top:]
    above = np.ascontiguousarray(rgb[max(0, top - len(ground)) : top][::-4, ::4])
    blurred = cv2.blur(above, (3, 21))
    mirror: npt.NDArray[np.uint8] = np.asarray(cv2.resize(blurred, (ground.shape[1], ground.shape[0])), np.uint8)
    owners = view.canvas.owners[top:]
    wet = ((owners == ROAD) | (owners == SIDEWALK)).astype(np.uint8)
    share = view.weather.wetness
    cv2.copyTo(cv2.addWeighted(ground, 1 - share, mirror, share, 0), wet, ground)


class Painter:
    """Draws the objects of one drive."""

    def __init__(self, seed: int, street: Street, weather: Weather) -> None:
        self._weather = weather
        self._houses = Houses(seed, street.front, weather)
        self._plants = Plants(seed, weather)

    def placed(self, view: SceneView, chunks: Sequence[Chunk], moving: Iterable[Mover]) -> list[Placed]:
        """Returns all visible objects, ready to be drawn."""
        things: list[Placed | None] = []
        for part in chunks:
            things += [self._houses.place(view, house) for house in part.houses]
            things += [_unless_in_the_way(self._plants.place(view, plant)) for plant in part.plants]
            things += [self._plants.place_hedge(view, hedge) for hedge in part.hedges]
            things += [_unless_in_the_way(_place_post(view, post)) for post in part.posts]
            things += [_place_vehicle(view, car) for car in part.parked]
        for mover in moving:
            things.append(_place_vehicle(view, mover) if mover.kind in VEHICLES else _place_figure(view, mover))
        return [thing for thing in things if thing is not None]

    def shadows(self, view: SceneView, chunks: Sequence[Chunk], moving: Iterable[Mover]) -> Iterator[Points]:
        """Yields the outlines of the shadows on the ground."""
        x, up, z = self._weather.towards_sun
        lean = (-x / up, -z / up)
        sunny = self._weather.shadow < _CAST
        for part in chunks:
            if view.depth(part.start) > AHEAD:
                continue
            for house in part.houses if sunny else ():
                yield from self._houses.shadow(house, lean)
            for plant in part.plants:
                yield _round(plant.s, plant.z, plant.trunk + plant.height / 2, plant.width * 0.45, lean)
            for car in part.parked:
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
