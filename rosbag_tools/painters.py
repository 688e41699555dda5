"""Puts what stands and moves along the street into a picture: houses, plants, posts, vehicles, figures, shadows."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import cv2
import numpy as np

from rosbag_tools import textures
from rosbag_tools.camera import NEAR, Camera, Points
from rosbag_tools.canvas import BUILDING, PERSON, RIDER, ROAD, SIDEWALK, VEGETATION, Canvas, Image
from rosbag_tools.figures import figure, paint_figure, paint_wheels, riding, walking
from rosbag_tools.furniture import paint_post
from rosbag_tools.stacking import Placed
from rosbag_tools.traffic import AHEAD, Mover
from rosbag_tools.vehicles import VEHICLES, paint_vehicle, vehicle
from rosbag_tools.weather import Weather
from rosbag_tools.world import Chunk, Hedge, House, Parked, Plant, Post, Street

_HOUSE_DEPTH = 11.0
_HOUSES_TO, _PLANTS_TO = 190.0, 130.0  # Metres.
_THINNEST = 3.0  # Pixels at full width: what is thinner a camera does not resolve.
_FACES = 6
_CLEAR = (1.2, 14.0)  # Nothing stands in the camera's way: metres to each side and ahead. Persons may come nearer.
_CLOSEST = 2.5  # Metres from which surfaces are draped: nearer, they are beside the picture.


class Painter:
    """Paints the things of one drive."""

    def __init__(self, seed: int, street: Street, weather: Weather, scale: float) -> None:
        self._seed = seed
        self._street = street
        self._weather = weather
        self._scale = scale
        self._facades: dict[tuple[int, int, int], list[Image]] = {}
        self._walls = [textures.wall(f"face/{seed}/{at}", weather) for at in range(_FACES)]
        self._crowns = [textures.foliage(f"crown/{seed}/{at}", weather, tree=True) for at in range(5)]
        self._bushes = [textures.foliage(f"bush/{seed}/{at}", weather, tree=False) for at in range(3)]
        self._hedges = [textures.pyramid(textures.hedge(f"hedge/{seed}/{at}", weather)) for at in range(2)]
        rng = np.random.default_rng([seed, 11])
        drops = (rng.random((700, 900)) > 0.9985).astype(np.float32)  # noqa: PLR2004 - the share of drops.
        streaks = np.asarray(cv2.blur(drops, (1, 15))) * 15 * 26
        self._streaks = np.clip(streaks, 0, 60).astype(np.uint8)

    def placed(self, canvas: Canvas, camera: Camera, chunks: Sequence[Chunk], moving: Iterable[Mover]) -> list[Placed]:
        """All that is in view, ready to be painted."""
        things: list[Placed | None] = []
        for chunk in chunks:
            things += [self._house(canvas, camera, house) for house in chunk.houses]
            things += [self._plant(canvas, camera, plant) for plant in chunk.plants]
            things += [self._hedge(canvas, camera, hedge) for hedge in chunk.hedges]
            things += [self._post(canvas, camera, post) for post in chunk.posts]
            things += [
                self._vehicle(canvas, camera, car.kind, (car.s, car.z), car.yaw, car.look)
                for car in self._standing(camera, chunk)
            ]
        for mover in moving:
            if mover.kind in VEHICLES:
                things.append(self._vehicle(canvas, camera, mover.kind, (mover.s, mover.z), mover.yaw, mover.look))
            else:
                things.append(self._figure(canvas, camera, mover))
        return [thing for thing in things if thing is not None]

    def shadows(self, camera: Camera, chunks: Sequence[Chunk], moving: Iterable[Mover]) -> Iterator[Points]:
        """The outlines of the shadows on the ground."""
        weather = self._weather
        x, up, z = weather.towards_sun
        lean = (-x / up, -z / up)
        for chunk in chunks:
            if chunk.start - camera.z > AHEAD:
                continue
            for house in chunk.houses:
                yield from self._house_shadow(house, lean)
            for plant in chunk.plants:
                yield _round(plant.s, plant.z, plant.trunk + plant.height / 2, plant.width * 0.45, lean)
            for car in chunk.parked:
                yield _block(car.kind, car.look, car.s, car.z, lean, sunny=weather.shadow < 0.7)  # noqa: PLR2004 - casting.
        for mover in moving:
            if mover.kind in VEHICLES:
                yield _block(mover.kind, mover.look, mover.s, mover.z, lean, sunny=weather.shadow < 0.7)  # noqa: PLR2004
            else:
                yield _round(mover.s, mover.z, 0.0, 0.35, lean)

    def finish(self, canvas: Canvas, camera: Camera, time_s: float) -> None:
        """Mirror the scene in wet ground, and let it rain."""
        if self._weather.wetness > 0.1:  # noqa: PLR2004 - more than damp.
            self._mirror(canvas, camera)
            height, width = canvas.owners.shape
            rng = np.random.default_rng([self._seed, int(time_s * 1000) & 0xFFFFFFFF])
            shift = rng.integers(0, 700, 2)
            rows = np.resize(np.roll(self._streaks, tuple(shift.tolist()), (0, 1)), self._streaks.shape)
            layer = cv2.resize(rows, (width, height), interpolation=cv2.INTER_LINEAR)
            cv2.add(canvas.rgb, cv2.cvtColor(np.asarray(layer), cv2.COLOR_GRAY2RGB), dst=canvas.rgb)

    def _mirror(self, canvas: Canvas, camera: Camera) -> None:
        top = int(camera.horizon) + 1
        ground = canvas.rgb[top:]
        rows = len(ground)
        above = canvas.rgb[max(0, top - rows) : top][::-4, ::4]
        blurred = cv2.blur(np.ascontiguousarray(above), (3, 21))
        mirror = cv2.resize(blurred, (canvas.rgb.shape[1], rows), interpolation=cv2.INTER_LINEAR)
        owners = canvas.owners[top:]
        wet = ((owners == ROAD) | (owners == SIDEWALK)).astype(np.uint8)
        mixed = cv2.addWeighted(ground, 1 - self._weather.wetness, mirror, self._weather.wetness, 0)
        cv2.copyTo(mixed, wet, ground)

    @staticmethod
    def _standing(camera: Camera, chunk: Chunk) -> Iterator[Parked]:
        for car in chunk.parked:
            if -12.0 < car.z - camera.z < AHEAD:
                yield car

    def _bounds(self, camera: Camera, points: Points) -> tuple[Points, tuple[float, float]] | None:
        """Points as seen, and the columns they cover; None where they are behind or beside the picture."""
        seen = camera.see(points)
        ahead = np.maximum(seen[:, 2], NEAR)
        if seen[:, 2].max() < NEAR:
            return None
        columns = camera.centre + camera.focal * seen[:, 0] / ahead
        low, high = float(columns.min()), float(columns.max())
        if high < 0 or low > camera.width:
            return None
        return seen, (low, high)

    def _house(self, canvas: Canvas, camera: Camera, house: House) -> Placed | None:
        if house.near - camera.z > _HOUSES_TO or house.far - camera.z < _CLOSEST + 1.0:
            return None
        front, back = house.side * self._street.front, house.side * (self._street.front + _HOUSE_DEPTH)
        footprint = np.array([[s, 0.0, z] for s in (front, back) for z in (house.near, house.far)])
        bounds = self._bounds(camera, footprint)
        if bounds is None:
            return None
        seen, columns = bounds
        left, right = float(seen[:2, 0].min()), float(seen[:2, 0].max())
        if house.side < 0:
            left -= _HOUSE_DEPTH
        else:
            right += _HOUSE_DEPTH
        return Placed(
            left,
            right,
            float(seen[0, 2]),
            float(seen[1, 2]),
            columns,
            partial(self._paint_house, canvas, camera, house),
        )

    def _paint_house(self, canvas: Canvas, camera: Camera, house: House) -> None:
        side, weather = house.side, self._weather
        front, back = side * self._street.front, side * (self._street.front + _HOUSE_DEPTH)
        top = house.storeys * textures.STOREY
        face = house.face % _FACES
        near = max(house.near, camera.z + _CLOSEST)
        depth = near - camera.z
        if house.roof:
            ridge = (front + back) / 2
            slope = np.array(
                [
                    [front, top, near],
                    [front, top, house.far],
                    [ridge, top + house.roof, house.far],
                    [ridge, top + house.roof, near],
                ]
            )
            tile = ((150, 74, 56), (92, 84, 82), (120, 96, 80))[house.face % 3]
            canvas.fill(
                camera.polygon(camera.see(slope)), weather.paint(tile, depth, (-side * 0.5, 0.86, 0.0)), BUILDING
            )
        if house.near - camera.z > _CLOSEST:
            wall = self._walls[face]
            corners = np.array([[front, top, near], [back, top, near], [back, 0, near], [front, 0, near]])
            self._drape(
                canvas, camera, weather.veiled(wall, depth), corners[[1, 0, 3, 2]] if side < 0 else corners, BUILDING
            )
            if house.roof:
                middle = (front + back) / 2
                gable = np.array([[front, top, near], [back, top, near], [middle, top + house.roof, near]])
                canvas.fill(
                    camera.polygon(camera.see(gable)),
                    weather.paint(wall[64, 64] / max(weather.ambient), depth),
                    BUILDING,
                )
        length = house.far - house.near
        bays = 6 if length > 13.0 else 3  # noqa: PLR2004 - metres that three bays still fill well.
        pixels = camera.focal * top / max(depth, 4.0)
        picture = textures.level(self._facade(face, house.storeys, bays), pixels)
        width = picture.shape[1]
        cut = int(np.ceil((near - house.near) / length * width))
        if cut >= width:
            return
        start = house.near + cut / width * length
        depths = np.linspace(start, house.far, width - cut) - camera.z
        picture = weather.veiled(picture[:, cut:], depths)
        corners = np.array([[front, top, start], [front, top, house.far], [front, 0, house.far], [front, 0, start]])
        if side > 0:
            picture, corners = np.ascontiguousarray(picture[:, ::-1]), corners[[1, 0, 3, 2]]
        self._drape(canvas, camera, picture, corners, BUILDING)

    def _facade(self, face: int, storeys: int, bays: int) -> list[Image]:
        key = (face, storeys, bays)
        if key not in self._facades:
            picture = textures.facade(f"face/{self._seed}/{face}", self._weather, storeys, bays)
            self._facades[key] = textures.pyramid(picture)
        return self._facades[key]

    @staticmethod
    def _drape(canvas: Canvas, camera: Camera, picture: Image, corners: Points, owner: int) -> None:
        pixels = camera.project(camera.see(corners))
        canvas.drape(picture, pixels, camera.rounded(pixels), owner)

    def _plant(self, canvas: Canvas, camera: Camera, plant: Plant) -> Placed | None:
        depth = plant.z - camera.z
        if not _CLOSEST < depth < _PLANTS_TO or plant.width * camera.focal / depth < _THINNEST * self._scale:
            return None
        half = plant.width / 2
        bounds = self._bounds(camera, np.array([[plant.s - half, 0, plant.z], [plant.s + half, 0, plant.z]]))
        if bounds is None:
            return None
        seen, columns = bounds
        middle, reach = float(seen[:, 0].mean()), 0.3 if plant.trunk else half * 0.6
        if abs(middle) < _CLEAR[0] and depth < _CLEAR[1]:
            return None
        return Placed(
            middle - reach, middle + reach, depth, depth, columns, partial(self._paint_plant, canvas, camera, plant)
        )

    def _paint_plant(self, canvas: Canvas, camera: Camera, plant: Plant) -> None:
        depth = plant.z - camera.z
        scale = camera.focal / depth
        middle, foot = camera.project(camera.see(np.array([[plant.s, 0.0, plant.z]])))[0].tolist()
        if plant.trunk:
            radius = max(0.5, 0.045 * plant.width * scale)
            high = foot - (plant.trunk + plant.height * 0.4) * scale
            trunk = np.array(
                [
                    [middle - radius * 1.2, foot],
                    [middle + radius * 1.2, foot],
                    [middle + radius * 0.7, high],
                    [middle - radius * 0.7, high],
                ]
            )
            canvas.fill(camera.rounded(trunk), self._weather.paint((96, 78, 62), depth), VEGETATION)
        looks = self._crowns if plant.trunk else self._bushes
        picture, shape = looks[plant.look % len(looks)]
        step = max(1, int(picture.shape[0] / max(8.0, plant.height * scale)))
        if step > 1:
            side = picture.shape[0] // step
            picture = np.asarray(cv2.resize(picture, (side, side), interpolation=cv2.INTER_AREA))
            shape = np.asarray(cv2.resize(shape, (side, side), interpolation=cv2.INTER_NEAREST))
        size = shape.shape[0]
        corner = (middle - plant.width / 2 * scale, foot - (plant.trunk + plant.height) * scale)
        stretch = (plant.width * scale / size, plant.height * scale / size)
        canvas.stamp(self._weather.veiled(picture, depth), shape, corner, stretch, VEGETATION)

    def _hedge(self, canvas: Canvas, camera: Camera, hedge: Hedge) -> Placed | None:
        near = max(hedge.near, camera.z + _CLOSEST)
        if hedge.far - near < 0.5 or near - camera.z > _PLANTS_TO:  # noqa: PLR2004 - too short to show.
            return None
        bounds = self._bounds(camera, np.array([[hedge.s, 0, near], [hedge.s, 0, hedge.far]]))
        if bounds is None:
            return None
        seen, columns = bounds
        low, high = float(seen[:, 0].min()) - 0.2, float(seen[:, 0].max()) + 0.2
        paint = partial(self._paint_hedge, canvas, camera, hedge, near)
        return Placed(low, high, float(seen[0, 2]), float(seen[1, 2]), columns, paint)

    def _paint_hedge(self, canvas: Canvas, camera: Camera, hedge: Hedge, near: float) -> None:
        depth = near - camera.z
        picture = textures.level(self._hedges[hedge.look % 2], camera.focal * hedge.height / max(depth, 4.0))
        side = 1 if hedge.s > 0 else -1
        back, top = hedge.s + side * 0.8, hedge.height
        end = np.array([[hedge.s, 0, near], [back, 0, near], [back, top, near], [hedge.s, top, near]])
        canvas.fill(camera.polygon(camera.see(end)), self._weather.paint((76, 100, 50), depth), VEGETATION)
        corners = np.array(
            [[hedge.s, top, near], [hedge.s, top, hedge.far], [hedge.s, 0, hedge.far], [hedge.s, 0, near]]
        )
        picture = self._weather.veiled(picture, np.linspace(depth, hedge.far - camera.z, picture.shape[1]))
        if side > 0:
            picture, corners = np.ascontiguousarray(picture[:, ::-1]), corners[[1, 0, 3, 2]]
        self._drape(canvas, camera, picture, corners, VEGETATION)

    def _post(self, canvas: Canvas, camera: Camera, post: Post) -> Placed | None:
        depth = post.z - camera.z
        if depth < 1.5 or 2 * post.radius * camera.focal / depth < _THINNEST * self._scale:  # noqa: PLR2004 - too near to be seen.
            return None
        bounds = self._bounds(camera, np.array([[post.s - 3.0, 0, post.z], [post.s + 3.0, 0, post.z]]))
        if bounds is None:
            return None
        seen, columns = bounds
        middle = float(seen[:, 0].mean())
        if abs(middle) < _CLEAR[0] and depth < _CLEAR[1]:
            return None
        return Placed(
            middle - 0.1, middle + 0.1, depth, depth, columns, partial(paint_post, canvas, camera, self._weather, post)
        )

    def _vehicle(
        self, canvas: Canvas, camera: Camera, kind: str, place: tuple[float, float], yaw: float, look: int
    ) -> Placed | None:
        model = vehicle(kind, look)
        half, reach = model.width / 2, model.length / 2
        corners = np.array([[place[0] + x * half, 0.0, place[1] + z * reach] for x in (-1, 1) for z in (-1, 1)])
        bounds = self._bounds(camera, corners)
        if bounds is None or place[1] - camera.z > AHEAD:
            return None
        seen, columns = bounds

        def paint() -> None:
            paint_vehicle(canvas, camera, self._weather, model, place, yaw, canvas.new_thing(VEHICLES[kind]))

        x, depth = seen[:, 0], seen[:, 2]
        return Placed(float(x.min()), float(x.max()), float(depth.min()), float(depth.max()), columns, paint)

    def _figure(self, canvas: Canvas, camera: Camera, mover: Mover) -> Placed | None:
        depth = mover.z - camera.z
        body = figure(mover.look)
        if depth < 1.5 or 0.4 * camera.focal / depth < _THINNEST * self._scale:  # noqa: PLR2004 - too near to be seen.
            return None
        reach = 0.9 if mover.kind == "rider" else 0.45
        bounds = self._bounds(camera, np.array([[mover.s - reach, 0, mover.z], [mover.s + reach, 0, mover.z]]))
        if bounds is None:
            return None
        seen, columns = bounds

        def paint() -> None:
            place = (mover.s, mover.z)
            if mover.kind == "rider":
                owner = canvas.new_thing(RIDER)
                paint_wheels(canvas, camera, self._weather, place, mover.yaw, owner)
                paint_figure(canvas, camera, self._weather, riding(body, mover.phase), place, mover.yaw, owner)
            else:
                owner = canvas.new_thing(PERSON)
                paint_figure(canvas, camera, self._weather, walking(body, mover.phase), place, mover.yaw, owner)

        middle = float(seen[:, 0].mean())
        if abs(middle) < _CLEAR[0] and depth < _CLEAR[1] / 3:
            return None
        return Placed(middle - 0.28, middle + 0.28, depth, depth, columns, paint)

    def _house_shadow(self, house: House, lean: tuple[float, float]) -> Iterator[Points]:
        if self._weather.shadow > 0.7:  # noqa: PLR2004 - no sun to cast one.
            return
        height = house.storeys * textures.STOREY
        shift = lean[0] * height
        if shift * house.side >= 0:
            return
        front, slide = house.side * self._street.front, lean[1] * height
        yield np.array(
            [
                [front, 0, house.near],
                [front, 0, house.far],
                [front + shift, 0, house.far + slide],
                [front + shift, 0, house.near + slide],
            ]
        )


def _round(s: float, z: float, height: float, radius: float, lean: tuple[float, float]) -> Points:
    angles = np.linspace(0, 2 * np.pi, 13)[:-1]
    x, y = s + lean[0] * height, z + lean[1] * height
    return np.stack((x + radius * np.cos(angles), np.zeros(12), y + radius * np.sin(angles)), axis=1)


def _block(kind: str, look: int, s: float, z: float, lean: tuple[float, float], *, sunny: bool) -> Points:
    """The convex outline of a vehicle's shadow: below it, and where the sun throws it."""
    model = vehicle(kind, look)
    half, reach = model.width / 2, model.length / 2
    base = np.array([[s + x * half, z + y * reach] for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])
    points = np.concatenate((base, base + np.array(lean) * model.height * 0.8)) if sunny else base
    hull = cv2.convexHull(points.astype(np.float32))[:, 0]
    return np.stack((hull[:, 0], np.zeros(len(hull)), hull[:, 1]), axis=1).astype(np.float64)
