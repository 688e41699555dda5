"""Draws the ground: road, markings, kerbs, sidewalks and grass, with texture and shadows."""

from collections.abc import Iterable, Sequence

import cv2
import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.camera import NEAR, Camera, Points
from rosbag_tools.drive.canvas import ROAD, SIDEWALK, VEGETATION, Canvas
from rosbag_tools.drive.weather import Triple, Weather, triple
from rosbag_tools.drive.world import CHUNK, CROSSING, ZEBRA, Chunk, Street

FARTHEST = 260.0  # Distance up to which the ground is drawn, in metres.
_TILE = 16.0  # Period of the texture, in metres.
_FAR_SIDE = 260.0  # Lateral end of the ground, outside the image, in metres.
_KERB = 0.16
_MARKED = 85.0  # Distance up to which markings are drawn, in metres.
_UP = (0.0, 1.0, 0.0)


class Ground:
    """The ground of one drive; its colours depend on the seed."""

    def __init__(self, street: Street, weather: Weather, grain: npt.NDArray[np.float32]) -> None:
        rng = np.random.default_rng([street.seed, 5])
        self._street = street
        self._weather = weather
        self._grain = grain
        self._grain_strength = float(rng.uniform(0.10, 0.22))
        tone = rng.uniform(0.8, 1.2)
        wet = 1.0 - 0.35 * float(weather.wetness > 0.1)  # Wet, not only damp.
        self._road: Triple = triple(np.array((92, 92, 96)) * tone * wet)
        warm = rng.uniform(-12, 14)
        self._pavement: Triple = triple(np.array((158 + warm, 153, 146 - warm)) * rng.uniform(0.85, 1.15) * wet)
        self._kerb: Triple = triple(np.array((188, 186, 182)) * rng.uniform(0.85, 1.1) * wet)
        self._grass: Triple = triple(np.array((92, 124, 58)) * rng.uniform(0.8, 1.15))
        self._paint: Triple = triple(np.array((226, 226, 220)) * rng.uniform(0.8, 1.05))

    def paint(self, canvas: Canvas, camera: Camera, chunks: Sequence[Chunk], shadows: Iterable[Points]) -> None:
        """Draws the ground of these chunks; `shadows` are convex outlines N×3 on it."""
        self._paint_strips(canvas, camera, {chunk.start: chunk for chunk in chunks})
        for chunk in chunks:
            if chunk.start - camera.z < _MARKED:
                self._paint_markings(canvas, camera, chunk)
        self._paint_light(canvas, camera, shadows)

    def _paint_strips(self, canvas: Canvas, camera: Camera, chunks: dict[float, Chunk]) -> None:
        street = self._street
        reaches = (street.road, street.road + _KERB, street.pavement + 2 * _KERB, street.edge, _FAR_SIDE)
        lines = np.array([-reach for reach in reversed(reaches)] + list(reaches))
        depths = _depths(camera, chunks)
        grid = np.stack(
            [np.tile(lines, len(depths)), np.zeros(len(lines) * len(depths)), np.repeat(depths, len(lines))], 1
        )
        pixels = np.rint(np.clip(camera.project(camera.see(grid)), -30000, 30000)).astype(np.int32)
        rows = pixels.reshape(len(depths), len(lines), 2)
        for step in range(len(depths) - 2, -1, -1):
            middle = float(depths[step] + depths[step + 1]) / 2
            chunk = chunks.get(np.floor(middle / CHUNK) * CHUNK)
            if chunk is None:
                continue
            kinds = self._strips(chunk, middle)
            colours = self._weather.seen(self._weather.lit([colour for colour, _ in kinds], _UP), middle - camera.z)
            for at, (_, owner) in enumerate(kinds):
                near, far = rows[step], rows[step + 1]
                canvas.fill(np.array((near[at], near[at + 1], far[at + 1], far[at])), colours[at], owner)

    def _strips(self, chunk: Chunk, z: float) -> list[tuple[Triple, int]]:
        """Returns colour and class of the strips from left to right at `z`."""
        shade = 1.0 + 0.06 * chunk.patch
        road = ((self._road[0] * shade, self._road[1] * shade, self._road[2] * shade), ROAD)
        if chunk.side_street and CROSSING[0] <= z - chunk.start <= CROSSING[1]:
            return [road] * 9
        kerb, pavement, grass = (self._kerb, SIDEWALK), (self._pavement, SIDEWALK), (self._grass, VEGETATION)
        verge = (
            grass if self._street.verge and not (chunk.zebra and ZEBRA[0] <= z - chunk.start <= ZEBRA[1]) else pavement
        )
        left, right = (grass if green else pavement for green in chunk.green)
        return [left, pavement, verge, kerb, road, kerb, verge, pavement, right]

    def _paint_markings(self, canvas: Canvas, camera: Camera, chunk: Chunk) -> None:
        for s, width, start, end in _markings(self._street, chunk):
            if end - camera.z < NEAR or start - camera.z > _MARKED:
                continue
            a, b = s - width / 2, s + width / 2
            outline = np.array([[a, 0, start], [b, 0, start], [b, 0, end], [a, 0, end]])
            depth = max(start - camera.z, NEAR)
            canvas.tint(camera.polygon(camera.see(outline)), self._weather.paint(self._paint, depth, _UP))

    def _paint_light(self, canvas: Canvas, camera: Camera, shadows: Iterable[Points]) -> None:
        """Multiplies texture and shadows into the ground, at half the resolution."""
        top = max(0, int(camera.horizon) + 1)
        area = canvas.rgb[top:]
        if not area.size:
            return
        small = camera.scaled(0.5)
        size = (small.width + 1, (area.shape[0] + 1) // 2 + 1)
        first = top / 2
        scale = self._grain.shape[0] / _TILE
        lift = first - small.horizon
        into = np.array(
            [
                [scale * small.h, scale * small.s, scale * (small.s * lift - small.centre * small.h)],
                [0.0, scale * (small.z % _TILE), scale * (small.focal * small.h + (small.z % _TILE) * lift)],
                [0.0, 1.0, lift],
            ]
        )
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        grain = cv2.warpPerspective(self._grain, into, size, flags=flags, borderMode=cv2.BORDER_WRAP)
        depth = small.focal * small.h / np.maximum(np.arange(size[1]) + lift, 0.5)
        strength = self._grain_strength / (1.0 + (depth / 14.0) ** 2)
        light = 1.0 + np.asarray(grain) * strength.astype(np.float32)[:, None]
        shade = np.full(light.shape, 255, np.uint8)
        for outline in shadows:
            polygon = small.polygon(small.see(outline))
            if polygon is not None:
                cv2.fillConvexPoly(
                    shade, polygon - np.array([0, int(first)], np.int32), int(255 * self._weather.shadow)
                )
        light *= np.asarray(cv2.blur(shade, (3, 3))) * np.float32(1 / 255)
        factors = np.clip(light * 128.0, 0, 255).astype(np.uint8)
        large = cv2.resize(factors, (size[0] * 2, size[1] * 2), interpolation=cv2.INTER_LINEAR)
        wide = cv2.cvtColor(large[: area.shape[0], : area.shape[1]], cv2.COLOR_GRAY2RGB)
        cv2.multiply(area, wide, dst=area, scale=1 / 128)


def _depths(camera: Camera, chunks: dict[float, Chunk]) -> npt.NDArray[np.float64]:
    """Returns the distances at which the ground is divided: finer nearby, and wherever the street changes."""
    end = max(chunks) + CHUNK
    cuts = set((camera.z + np.geomspace(NEAR, FARTHEST, 30)).tolist())
    for start, chunk in chunks.items():
        cuts.update((start, start + ZEBRA[0], start + ZEBRA[1]))
        if chunk.side_street:
            cuts.update((start + CROSSING[0], start + CROSSING[1]))
    return np.array(sorted(cut for cut in cuts if camera.z + NEAR <= cut <= end))


def _markings(street: Street, chunk: Chunk) -> list[tuple[float, float, float, float]]:
    """Returns the painted lines of a chunk: centre, width, start and end."""
    start = chunk.start
    end = start + (ZEBRA[0] - 1.6 if chunk.zebra else CHUNK)
    pieces = [(0.0, 0.14, start + 6.0 * step, min(start + 6.0 * step + 3.5, end)) for step in range(4)]
    marks = (
        pieces
        if street.dashes
        else [(0.0, 0.14, start + 3.0 * step, min(start + 3.0 * step + 3.0, end)) for step in range(8)]
    )
    for lane in range(1, street.lanes):
        for side in (-1, 1):
            marks += [(side * lane * street.lane_width, 0.13, piece[2], piece[3]) for piece in pieces]
    if street.parking:
        for side in (-1, 1):
            s = side * street.lanes * street.lane_width
            marks += [(s, 0.1, start + 4.0 * step, min(start + 4.0 * step + 4.0, end)) for step in range(6)]
    if chunk.zebra:
        count = int(2 * street.road)
        marks += [(-street.road + 0.5 + step, 0.5, start + ZEBRA[0], start + ZEBRA[1]) for step in range(count)]
        lanes = street.lanes * street.lane_width
        marks.append((lanes / 2, lanes - 0.4, start + ZEBRA[0] - 1.4, start + ZEBRA[0] - 1.0))
        if not chunk.side_street:
            rest = start + ZEBRA[1] + 1.4
            marks.append((0.0, 0.14, rest, rest + 4.0))
    return [mark for mark in marks if mark[3] > mark[2]]
