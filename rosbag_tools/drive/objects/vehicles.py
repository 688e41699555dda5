"""Cars, trucks and buses: convex solids with decals, generated from a number, drawn without hidden faces."""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.camera import NEAR, Points
from rosbag_tools.drive.canvas import BUS, CAR, TRUCK, palette
from rosbag_tools.drive.view import SceneView
from rosbag_tools.drive.weather import Triple

VEHICLES = {"car": CAR, "truck": TRUCK, "bus": BUS}
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
    """Builds a hexahedron from its lower rectangle `low` and upper rectangle `high`, (left, right, rear, front), in metres.

    Its sides are "rear", "front", "left", "right" and "top"; the bottom is not drawn.
    """

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
    """Returns the wheels: blocks under the body, visible from the ends, and discs two layers above for the sides.

    `half` is half of the width between the outer sides, `axles` are places along the vehicle; all are in metres.
    """
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


@dataclass(frozen=True, slots=True)
class VehicleShape:
    """The shape of a vehicle, in metres; the origin is on the ground below its centre, and it faces ahead."""

    kind: str
    width: float
    height: float
    length: float
    solids: tuple[Solid, ...]


@lru_cache(maxsize=512)
def vehicle(kind: str, look: int) -> VehicleShape:
    """Returns the shape of a "car", "truck" or "bus" that belongs to the number `look`."""
    rng = Random(f"vehicle/{kind}/{look}")
    return {"car": _car, "truck": _truck, "bus": _bus}[kind](rng)


def paint_vehicle(view: SceneView, model: VehicleShape, place: tuple[float, float], yaw: float) -> None:
    """Draws a vehicle at `place` (metres right of the centreline and along it), turned left by `yaw` radians."""
    camera, weather = view.camera, view.weather
    owner = view.canvas.new_thing(VEHICLES[model.kind])
    turn = np.array([[np.cos(yaw), 0, -np.sin(yaw)], [0, 1, 0], [np.sin(yaw), 0, np.cos(yaw)]])
    base = np.array([place[0], 0.0, place[1]])
    centres = camera.see(np.stack([solid.centre for solid in model.solids]) @ turn.T + base)
    distances = np.linalg.norm(centres, axis=1)
    order = sorted(range(len(model.solids)), key=lambda at: (model.solids[at].layer, -distances[at]))
    faces = [face for at in order for face in model.solids[at].faces]
    seen = camera.see(np.concatenate([face.points for face in faces]) @ turn.T + base)
    starts = np.cumsum([0, *(len(face.points) for face in faces)])
    first, second, third = (seen[starts[:-1] + step] for step in range(3))
    visible = (np.cross(second - first, third - first) * first).sum(axis=1) < 0
    depth = max(view.depth(place[1]), NEAR)
    lit = weather.lit([face.colour for face in faces], np.stack([face.normal for face in faces]) @ turn.T)
    if weather.lamps:
        glows = np.array([face.glow for face in faces])
        lit[glows] = np.array([face.colour for face in faces])[glows] * 1.15
    colours = weather.seen(lit, depth)
    pixels = camera.project(seen) if seen[:, 2].min() >= NEAR else None
    for at in np.flatnonzero(visible).tolist():
        span = slice(int(starts[at]), int(starts[at + 1]))
        polygon = camera.polygon(seen[span]) if pixels is None else camera.rounded(pixels[span])
        view.canvas.fill(polygon, colours[at], owner)


def _car(rng: Random) -> VehicleShape:
    shape = rng.choice(("saloon", "hatch", "hatch", "estate", "suv", "van"))
    tall = {"saloon": 1.44, "hatch": 1.48, "estate": 1.48, "suv": 1.70, "van": 1.88}[shape] * rng.uniform(0.97, 1.03)
    length = {"saloon": 4.6, "hatch": 4.0, "estate": 4.7, "suv": 4.6, "van": 4.8}[shape] * rng.uniform(0.95, 1.05)
    half, ground = rng.uniform(0.86, 0.94), rng.uniform(0.24, 0.34)
    waist = tall * rng.uniform(0.58, 0.63)
    red, green, blue = (min(255.0, value * rng.uniform(0.85, 1.1)) for value in rng.choice(_CAR_COLOURS))
    colour = (red, green, blue)
    rear, front = -length / 2, length / 2
    hull = Block(
        colour,
        (-half, half, rear + 0.05, front - 0.05),
        (-half + 0.05, half - 0.05, rear + 0.1, front - 0.2),
        (ground, waist),
    )
    hull.decal("rear", (0.03, 0.2), (0.58, 0.9), (200, 20, 25), glow=True)
    hull.decal("rear", (0.8, 0.97), (0.58, 0.9), (200, 20, 25), glow=True)
    hull.decal("rear", (0.36, 0.64), (0.45, 0.65), (235, 235, 225))
    hull.decal("rear", (0.0, 1.0), (0.0, 0.2), (45, 45, 48))
    hull.decal("front", (0.03, 0.23), (0.6, 0.88), (250, 250, 240), glow=True)
    hull.decal("front", (0.77, 0.97), (0.6, 0.88), (250, 250, 240), glow=True)
    hull.decal("front", (0.27, 0.73), (0.3, 0.75), (38, 38, 42))
    hull.decal("front", (0.36, 0.64), (0.28, 0.45), (235, 235, 225))
    dark = (red * 0.7, green * 0.7, blue * 0.7)
    for side in ("left", "right"):
        hull.decal(side, (0.0, 1.0), (0.0, 0.14), (40, 40, 42))
        hull.decal(side, (0.455, 0.465), (0.15, 1.0), dark)
    bonnet = {"van": 0.75}.get(shape, rng.uniform(1.0, 1.25))
    boot = {"saloon": 0.75, "suv": 0.12, "van": 0.08, "estate": 0.1}.get(shape, 0.15)
    slope = {"van": 0.12, "estate": 0.3, "suv": 0.25}.get(shape, rng.uniform(0.45, 0.75))
    low = (-half + 0.06, half - 0.06, rear + boot, front - bonnet)
    high = (-half + 0.2, half - 0.2, rear + boot + slope, front - bonnet - rng.uniform(0.6, 0.85))
    cabin = Block(colour, low, high, (waist, tall))
    glass = (46.0, 54.0, 62.0)
    cabin.decal("rear", (0.08, 0.92), (0.12, 0.86), glass)
    cabin.decal("front", (0.05, 0.95), (0.06, 0.92), glass)
    for side in ("left", "right"):
        for span in ((0.06, 0.46), (0.5, 0.93)):
            cabin.decal(side, span, (0.12, 0.86), glass)
    radius = rng.uniform(0.30, 0.36)
    axles = (rear + length * 0.19, front - length * 0.19)
    solids = [*wheels(half, radius, axles, 0), hull.solid(1), cabin.solid(3)]
    if shape in ("suv", "estate") and rng.random() < rng.uniform(0.2, 0.6):
        solids.append(Block((40, 40, 42), high, high, (tall, tall + 0.1)).solid(4))
    return VehicleShape("car", 2 * half, tall, length, tuple(solids))


def _truck(rng: Random) -> VehicleShape:
    half, length = rng.uniform(1.12, 1.25), rng.uniform(6.5, 9.5)
    tall, cab_tall, deck = rng.uniform(3.2, 3.9), rng.uniform(2.5, 3.0), rng.uniform(0.9, 1.1)
    cab_length = rng.uniform(1.8, 2.2)
    rear, front = -length / 2, length / 2
    paint = rng.choice(_CAB_COLOURS)
    cab_front = (-half + 0.08, half - 0.08, front - cab_length, front - 0.12)
    cab = Block(paint, (-half + 0.03, half - 0.03, front - cab_length, front), cab_front, (0.5, cab_tall))
    glass = (44.0, 52.0, 60.0)
    cab.decal("front", (0.06, 0.94), (0.5, 0.88), glass)
    cab.decal("front", (0.15, 0.85), (0.18, 0.42), (50, 50, 54))
    cab.decal("front", (0.03, 0.2), (0.04, 0.14), (250, 250, 240), glow=True)
    cab.decal("front", (0.8, 0.97), (0.04, 0.14), (250, 250, 240), glow=True)
    cab.decal("left", (0.1, 0.75), (0.5, 0.86), glass)
    cab.decal("right", (0.25, 0.9), (0.5, 0.86), glass)
    load = rng.choice(_LOAD_COLOURS)
    room = (-half, half, rear, front - cab_length - 0.25)
    box = Block(load, room, room, (deck, tall))
    shade = (load[0] * 0.72, load[1] * 0.72, load[2] * 0.72)
    box.decal("rear", (0.49, 0.51), (0.0, 1.0), shade)
    for edge in ((0.0, 0.03), (0.97, 1.0)):
        box.decal("rear", edge, (0.0, 1.0), shade)
    for at in (0.2, 0.4, 0.6, 0.8):
        box.decal("rear", (at - 0.012, at + 0.012), (0.05, 0.95), shade)
    stripe = rng.choice(_STRIPES)
    style = rng.choice(("ribs", "stripe", "panel"))
    for side in ("left", "right"):
        if style == "ribs":
            for step in range(1, 9):
                box.decal(side, (step / 9 - 0.008, step / 9 + 0.008), (0.02, 0.98), shade)
        elif style == "stripe":
            box.decal(side, (0.0, 1.0), (0.25, 0.5), stripe)
        else:
            box.decal(side, (0.2, 0.8), (0.25, 0.75), stripe)
    frame = (-half + 0.05, half - 0.05, rear + 0.05, front - cab_length)
    chassis = Block((52, 52, 55), frame, frame, (0.5, deck))
    chassis.decal("rear", (0.02, 0.18), (0.3, 0.8), (200, 20, 25), glow=True)
    chassis.decal("rear", (0.82, 0.98), (0.3, 0.8), (200, 20, 25), glow=True)
    chassis.decal("rear", (0.38, 0.62), (0.2, 0.9), (235, 225, 170))
    for span in ((0.2, 0.34), (0.66, 0.8)):
        chassis.decal("rear", span, (0.2, 0.9), (225, 90, 40))
    radius = rng.uniform(0.45, 0.52)
    tyres = wheels(half - 0.02, radius, (rear + 1.3, rear + 2.5, front - 1.1), 0)
    solids = [*tyres, chassis.solid(1), cab.solid(3), box.solid(3)]
    return VehicleShape("truck", 2 * half, tall, length, tuple(solids))


def _bus(rng: Random) -> VehicleShape:
    half, length, tall = 1.27, rng.uniform(10.0, 12.5), rng.uniform(2.95, 3.2)
    paint, band = rng.choice(_BUS_COLOURS)
    low = (-half, half, -length / 2, length / 2)
    high = (-half + 0.04, half - 0.04, -length / 2 + 0.06, length / 2 - 0.1)
    hull = Block(paint, low, high, (0.32, tall))
    glass = (36.0, 44.0, 52.0)
    hull.decal("front", (0.04, 0.96), (0.3, 0.8), glass)
    hull.decal("front", (0.2, 0.8), (0.84, 0.95), (250, 170, 40), glow=True)
    hull.decal("front", (0.03, 0.17), (0.06, 0.16), (250, 250, 240), glow=True)
    hull.decal("front", (0.83, 0.97), (0.06, 0.16), (250, 250, 240), glow=True)
    hull.decal("front", (0.0, 1.0), (0.18, 0.26), band)
    hull.decal("rear", (0.1, 0.9), (0.52, 0.84), glass)
    hull.decal("rear", (0.35, 0.65), (0.88, 0.96), (250, 170, 40), glow=True)
    hull.decal("rear", (0.03, 0.12), (0.18, 0.46), (200, 20, 25), glow=True)
    hull.decal("rear", (0.88, 0.97), (0.18, 0.46), (200, 20, 25), glow=True)
    hull.decal("rear", (0.2, 0.8), (0.08, 0.34), (62, 62, 66))
    hull.decal("rear", (0.0, 1.0), (0.38, 0.46), band)
    count = rng.randint(6, 8)
    for side in ("left", "right"):
        hull.decal(side, (0.0, 1.0), (0.0, 0.16), (70, 70, 74))
        hull.decal(side, (0.0, 1.0), (0.26, 0.36), band)
        for pane in range(count):
            span = (0.02 + pane * 0.96 / count + 0.006, 0.02 + (pane + 1) * 0.96 / count - 0.006)
            hull.decal(side, span, (0.44, 0.84), glass)
    for span in ((0.86, 0.95), (0.5, 0.59)):
        hull.decal("right", span, (0.04, 0.84), (58, 66, 74))
    axles = (-length / 2 + 2.9, length / 2 - 2.5)
    return VehicleShape("bus", 2 * half, tall, length, (*wheels(half, 0.48, axles, 0), hull.solid(1)))


_CAR_COLOURS = palette("cdced0 ebebeb 282a2e 6e7278 a01e20 24468c 466eaa 3c5a42 be8c32 78543c 142846")
_CAB_COLOURS = palette("e6e6e6 b42824 285096 e19628 3c6e50")
_LOAD_COLOURS = palette("e8e8e6 c8ccd0 aaa08c 3c6496 aa3c32 5a8264")
_STRIPES = palette("be2828 2850a0 e6a01e 327846")
_BUS_COLOURS = tuple(
    zip(
        palette("e1be32 be2828 3c78b4 ebebeb 50965a e17828"),
        palette("3c3c40 f0f0f0 f0f0f0 328250 f0f0dc f0f0f0"),
        strict=True,
    )
)
