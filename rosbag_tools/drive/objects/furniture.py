"""Draws lamp posts, sign posts, traffic lights and bollards."""

import numpy as np

from rosbag_tools.drive.canvas import POLE, Colour
from rosbag_tools.drive.view import SceneView
from rosbag_tools.drive.world import Post

_STEEL = ((128, 130, 132), (96, 100, 104), (150, 152, 154), (70, 78, 76))
_PLATES: tuple[tuple[str, Colour, Colour], ...] = (
    ("disc", (200, 30, 34), (240, 240, 240)),
    ("disc", (30, 80, 170), (235, 235, 240)),
    ("triangle", (200, 30, 34), (240, 240, 240)),
    ("square", (30, 80, 170), (235, 235, 240)),
    ("square", (235, 200, 50), (240, 240, 240)),
    ("octagon", (195, 28, 32), (195, 28, 32)),
)


def paint_post(view: SceneView, post: Post) -> None:
    """Draws a post with its lamp, sign or light; everything has the class pole."""
    foot, top = view.camera.see(np.array([[post.s, 0.0, post.z], [post.s, post.height, post.z]]))
    painter = _Painter(view, float(foot[2]), float(foot[0]))
    steel = _STEEL[post.look % len(_STEEL)]
    painter.bar((0.0, 0.0), (0.0, float(top[1] - foot[1])), post.radius, steel)
    {"lamp": _lamp, "lantern": _lantern, "sign": _sign, "light": _light, "bollard": _cap}[post.kind](
        painter, post, steel
    )


class _Painter:
    """Draws in metres on an upright plane that faces the camera; the origin is the foot of a post."""

    def __init__(self, view: SceneView, depth: float, sideways: float) -> None:
        camera = view.camera
        self._canvas = view.canvas
        self._scale = camera.focal / depth
        self._column = camera.centre + sideways * self._scale
        self._row = camera.horizon + camera.h * self._scale
        self._weather = view.weather
        self._depth = depth

    def bar(self, start: tuple[float, float], end: tuple[float, float], radius: float, colour: Colour) -> None:
        """Draws a straight bar, with a highlight if it is wide enough."""
        self.polygon(_bar(start, end, radius, -1.0, 1.0), colour)
        light = (min(255, colour[0] + 36), min(255, colour[1] + 36), min(255, colour[2] + 36))
        if radius * self._scale > 2.5:  # Pixels that a highlight needs.
            self.polygon(_bar(start, end, radius, -0.5, 0.0), light)

    def polygon(self, points: list[tuple[float, float]], colour: Colour, *, glow: bool = False) -> None:
        """Draws a convex polygon of points (right, up)."""
        pixels = np.rint([(self._column + x * self._scale, self._row - y * self._scale) for x, y in points])
        shown = self._weather.seen([colour], self._depth)[0] if glow else self._weather.paint(colour, self._depth)
        self._canvas.fill(np.clip(pixels, -30000, 30000).astype(np.int32), shown, POLE)

    def ball(
        self,
        centre: tuple[float, float],
        radius: float,
        colour: Colour,
        *,
        sides: int = 14,
        turn: float = 0.0,
        glow: bool = False,
    ) -> None:
        """Draws a regular polygon, by default nearly a circle."""
        angles = np.linspace(0, 2 * np.pi, sides + 1)[:-1] + turn
        self.polygon(
            [(centre[0] + radius * np.cos(a), centre[1] + radius * np.sin(a)) for a in angles], colour, glow=glow
        )

    @property
    def lamps(self) -> bool:
        """True if lamps are lit."""
        return self._weather.lamps


def _bar(
    start: tuple[float, float], end: tuple[float, float], radius: float, low: float, high: float
) -> list[tuple[float, float]]:
    along = np.array(end) - np.array(start)
    across = np.array([along[1], -along[0]]) / max(float(np.hypot(*along)), 1e-6) * radius
    corners = (start + across * low, start + across * high, end + across * high, end + across * low)
    return [(float(x), float(y)) for x, y in corners]


def _lamp(painter: _Painter, post: Post, steel: Colour) -> None:
    reach = -post.side * (1.2 + 0.1 * (post.look % 8))
    painter.bar((0, post.height - 0.04), (reach, post.height + 0.25), 0.05, steel)
    head = [
        (reach, post.height + 0.16),
        (reach * 1.45, post.height + 0.2),
        (reach * 1.45, post.height + 0.32),
        (reach, post.height + 0.34),
    ]
    painter.polygon(head, (255, 225, 160) if painter.lamps else (190, 192, 194), glow=painter.lamps)


def _lantern(painter: _Painter, post: Post, _steel: Colour) -> None:
    painter.ball(
        (0, post.height + 0.2), 0.26, (255, 228, 170) if painter.lamps else (225, 225, 215), glow=painter.lamps
    )
    painter.polygon([(-0.3, post.height + 0.4), (0.3, post.height + 0.4), (0.0, post.height + 0.6)], (50, 52, 54))


def _sign(painter: _Painter, post: Post, steel: Colour) -> None:
    shape, rim, inside = _PLATES[post.look % len(_PLATES)]
    size = 0.30 + 0.02 * (post.look % 5)
    centre = (0.0, post.height - size)
    if post.side * post.look % 3 == 0:
        rim = inside = steel  # Seen from behind.
    sides, turn = {"disc": (16, 0.0), "triangle": (3, np.pi / 2), "square": (4, np.pi / 4), "octagon": (8, np.pi / 8)}[
        shape
    ]
    painter.ball(centre, size, rim, sides=sides, turn=turn)
    painter.ball(centre, size * 0.72, inside, sides=sides, turn=turn)
    if shape == "disc":
        painter.polygon(
            [
                (-size * 0.3, centre[1] - 0.05),
                (size * 0.3, centre[1] - 0.05),
                (size * 0.3, centre[1] + 0.05),
                (-size * 0.3, centre[1] + 0.05),
            ],
            (40, 40, 44),
        )


def _light(painter: _Painter, post: Post, steel: Colour) -> None:
    columns = [(0.0, post.height)]
    if post.look % 2:
        reach = -post.side * 2.6
        painter.bar((0, post.height + 1.2), (reach, post.height + 1.5), 0.055, steel)
        painter.bar((0, post.height - 0.1), (0, post.height + 1.25), post.radius * 0.9, steel)
        columns.append((reach, post.height + 1.9))
    green = post.look % 3 == 0
    for x, top in columns:
        painter.polygon([(x - 0.19, top - 1.0), (x + 0.19, top - 1.0), (x + 0.19, top), (x - 0.19, top)], (34, 36, 38))
        lamps = (
            (0.17, (255, 40, 36) if not green else (70, 20, 20)),
            (0.5, (80, 60, 20)),
            (0.83, (60, 255, 140) if green else (16, 60, 34)),
        )
        for down, colour in lamps:
            painter.ball((x, top - down), 0.12, colour, glow=max(colour) > 200)  # The bright one is on.


def _cap(painter: _Painter, post: Post, _steel: Colour) -> None:
    painter.bar((0, post.height * 0.75), (0, post.height * 0.9), post.radius, (200, 40, 40))
