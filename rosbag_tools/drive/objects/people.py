"""Draws persons and riders as skeletons that walk and pedal. A rider is a person together with the bicycle."""

from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, sin
from random import Random

import numpy as np

from rosbag_tools.drive.camera import NEAR, Points
from rosbag_tools.drive.canvas import PERSON, RIDER, Colour, palette
from rosbag_tools.drive.view import SceneView
from rosbag_tools.drive.weather import TOWARDS_CAMERA
from rosbag_tools.drive.world import Mover

REACH = {"person": 0.45, "rider": 0.9}  # Maximum extent to each side, in metres.
_TYRE = (38, 38, 40)

_Joint = tuple[float, float, float]  # (right, up, ahead) relative to the figure, in metres.


@dataclass(frozen=True, slots=True)
class Body:
    """Size and clothes of a person, and the colour of the bicycle of a rider.

    `height` is in metres, `girth` a factor of the thickness of limbs. Only riders wear a helmet.
    """

    height: float
    girth: float
    skin: Colour
    hair: Colour
    coat: Colour
    trousers: Colour
    bicycle: Colour
    helmet: bool
    bag: bool


@dataclass(frozen=True, slots=True)
class Limb:
    """A round bar between two joints, `thickness` metres in diameter."""

    start: _Joint
    end: _Joint
    thickness: float
    colour: Colour


@lru_cache(maxsize=512)
def figure(look: int) -> Body:
    """Returns the person that belongs to the number `look`."""
    rng = Random(f"figure/{look}")
    return Body(
        rng.uniform(1.6, 1.9),
        rng.uniform(0.9, 1.15),
        rng.choice(((226, 180, 150), (198, 146, 112), (140, 96, 70), (96, 66, 50))),
        rng.choice(((40, 30, 26), (90, 62, 40), (170, 140, 90), (120, 118, 116))),
        rng.choice(_COATS),
        rng.choice(_TROUSERS),
        rng.choice(((30, 30, 32), (170, 40, 36), (40, 80, 150), (220, 220, 220), (60, 120, 70))),
        rng.random() < rng.uniform(0.3, 1.0),
        rng.random() < rng.uniform(0.0, 0.6),
    )


def walking(body: Body, phase: float) -> list[Limb]:
    """Returns the limbs of a walking person, far side first; `phase` of the step in radians."""
    t = body.height
    swing = sin(phase)
    hip, shoulder = 0.52 * t, 0.82 * t
    limbs = []
    for side, way in ((-1, 1.0), (1, -1.0)):
        reach = 0.24 * t * swing * way
        lift = 0.05 * t * max(0.0, cos(phase) * way)
        knee = (side * 0.09, 0.28 * t + lift * 0.6, reach * 0.5 + 0.04)
        foot = (side * 0.09, 0.04 + lift, reach)
        limbs.append(Limb((side * 0.08, hip, 0), knee, 0.17 * body.girth, body.trousers))
        limbs.append(Limb(knee, foot, 0.13 * body.girth, body.trousers))
        limbs.append(Limb(foot, (foot[0], 0.04 + lift, foot[2] + 0.14), 0.09, (35, 30, 30)))
        elbow = (side * 0.25, 0.63 * t, -reach * 0.35)
        hand = (side * 0.24, 0.50 * t, -reach * 0.7 + 0.06)
        limbs.append(Limb((side * 0.19, shoulder - 0.03, 0), elbow, 0.11 * body.girth, body.coat))
        limbs.append(Limb(elbow, hand, 0.09 * body.girth, body.coat))
        limbs.append(Limb(hand, hand, 0.10, body.skin))
    return [*limbs, *_trunk(body, (0.0, hip, 0.0), (0.0, shoulder, 0.02), (0.0, 0.925 * t, 0.03))]


def riding(body: Body, phase: float) -> list[Limb]:
    """Returns the limbs of a rider and the bars of the bicycle; the wheels are drawn separately."""
    t = body.height
    hip, shoulder, head = (0.0, 0.98, -0.18), (0.0, 0.98 + 0.29 * t, 0.08), (0.0, 0.98 + 0.41 * t, 0.14)
    crank, saddle, bars, hub = (0.0, 0.30, 0.0), (0.0, 0.92, -0.2), (0.0, 1.02, 0.42), (0.0, 0.34, 0.55)
    rear = (0.0, 0.34, -0.52)
    limbs = [
        Limb(a, b, 0.045, body.bicycle)
        for a, b in ((crank, saddle), (crank, bars), (saddle, bars), (rear, crank), (rear, saddle), (hub, bars))
    ]
    limbs.append(Limb((-0.28, 1.04, 0.42), (0.28, 1.04, 0.42), 0.05, (40, 40, 42)))
    for side, turn in ((-1, 0.0), (1, pi)):
        pedal = (side * 0.13, 0.30 + 0.17 * sin(phase + turn), 0.17 * cos(phase + turn))
        knee = (side * 0.12, 0.5 * (pedal[1] + hip[1]) + 0.04, 0.5 * (pedal[2] + hip[2]) + 0.30)
        limbs.append(Limb((side * 0.09, hip[1], hip[2]), knee, 0.17 * body.girth, body.trousers))
        limbs.append(Limb(knee, pedal, 0.12 * body.girth, body.trousers))
        limbs.append(Limb(pedal, (pedal[0], pedal[1], pedal[2] + 0.12), 0.09, (35, 30, 30)))
        elbow = (side * 0.28, shoulder[1] - 0.25, 0.22)
        limbs.append(Limb((side * 0.18, shoulder[1] - 0.03, shoulder[2]), elbow, 0.11 * body.girth, body.coat))
        limbs.append(Limb(elbow, (side * 0.26, 1.06, 0.42), 0.09, body.skin))
    limbs += _trunk(body, hip, shoulder, head)
    if body.helmet:
        crown = (0.0, head[1] + 0.06, head[2] - 0.03)
        limbs.append(Limb(crown, crown, 0.23, (225, 225, 60)))
    return limbs


def paint_person(view: SceneView, mover: Mover) -> None:
    """Draws a walking or standing person."""
    _paint_limbs(view, mover, walking(figure(mover.look), mover.phase), view.canvas.new_thing(PERSON))


def paint_rider(view: SceneView, mover: Mover) -> None:
    """Draws a rider and the bicycle as one object."""
    owner = view.canvas.new_thing(RIDER)
    _paint_wheels(view, mover, owner)
    _paint_limbs(view, mover, riding(figure(mover.look), mover.phase), owner)


def _seen(view: SceneView, mover: Mover, joints: Points) -> Points | None:
    """Returns the joints in camera coordinates; None if they are too near."""
    turn = np.array([[cos(mover.yaw), 0, -sin(mover.yaw)], [0, 1, 0], [sin(mover.yaw), 0, cos(mover.yaw)]])
    seen = view.camera.see(joints @ turn.T + (mover.s, 0.0, mover.z))
    return seen if seen[:, 2].min() >= NEAR else None


def _paint_limbs(view: SceneView, mover: Mover, limbs: list[Limb], owner: int) -> None:
    seen = _seen(view, mover, np.array([joint for limb in limbs for joint in (limb.start, limb.end)]))
    if seen is None:
        return
    pixels = np.rint(view.camera.project(seen)).astype(int).tolist()
    depths = seen[:, 2].tolist()
    lit = view.weather.lit([limb.colour for limb in limbs], TOWARDS_CAMERA)
    colours = view.weather.seen(lit, depths[0])
    for at in sorted(range(len(limbs)), key=lambda at: -(depths[2 * at] + depths[2 * at + 1])):
        thickness = max(1, round(limbs[at].thickness * view.camera.focal / depths[2 * at]))
        view.canvas.line(pixels[2 * at], pixels[2 * at + 1], thickness, colours[at], owner)


def _paint_wheels(view: SceneView, mover: Mover, owner: int) -> None:
    angles = np.linspace(0, 2 * pi, 17)[:-1]
    colour = view.weather.paint(_TYRE, view.depth(mover.z), TOWARDS_CAMERA)
    for hub in (0.55, -0.52):
        ring = np.stack((np.zeros(16), 0.34 + 0.34 * np.sin(angles), hub + 0.34 * np.cos(angles)), axis=1)
        seen = _seen(view, mover, ring)
        if seen is None:
            continue
        pixels = np.rint(view.camera.project(seen)).astype(int).tolist()
        thickness = max(1, round(0.05 * view.camera.focal / float(seen[:, 2].mean())))
        for start, end in zip(pixels, pixels[1:] + pixels[:1], strict=True):
            view.canvas.line(start, end, thickness, colour, owner)


def _trunk(body: Body, hip: _Joint, shoulder: _Joint, head: _Joint) -> list[Limb]:
    low = tuple(a * 0.8 + b * 0.2 for a, b in zip(hip, shoulder, strict=True))
    wide = 0.11 * body.girth
    limbs = []
    for side in (-1, 0, 1):
        start = (hip[0] + side * wide * 0.7, low[1] - 0.06, hip[2])
        end = (shoulder[0] + side * wide, shoulder[1] - 0.09, shoulder[2])
        limbs.append(Limb(start, end, 0.22 * body.girth, body.coat))
    if body.bag:
        limbs.append(
            Limb((0, low[1] + 0.15, hip[2] - 0.2), (0, shoulder[1] - 0.12, shoulder[2] - 0.2), 0.26, (60, 60, 90))
        )
    limbs.append(Limb(shoulder, head, 0.12, body.skin))
    limbs.append(Limb(head, head, 0.21, body.skin))
    crown = (head[0], head[1] + 0.05, head[2] - 0.03)
    limbs.append(Limb(crown, crown, 0.20, body.hair))
    return limbs


_COATS = palette("b02828 283c78 3c3c40 d2cdc3 d2aa3c 3c6e46 965082 5a8cb4 dc6e32 1e1e22")
_TROUSERS = palette("2c3454 28282c 6e604c 464c5a 968c78")
