"""Generates the textures of a drive: facades, foliage, clouds and asphalt."""

from random import Random

import cv2
import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.canvas import Image, palette
from rosbag_tools.drive.weather import Weather

STOREY = 3.1  # Height of a storey, in metres.
BAY = 3.0  # Width of facade per window, in metres.
_SCALE = 22  # Resolution of facade textures, in pixels per metre.
_FOLIAGE = 320  # Width and height of foliage textures, in pixels.


def grain(
    rng: np.random.Generator, height: int, width: int, octaves: int, coarsest: int = 4
) -> npt.NDArray[np.float32]:
    """Returns smooth noise H×W from -1 to 1, with `octaves` levels of detail, starting at `coarsest` cells."""
    total = np.zeros((height, width), np.float32)
    for octave in range(octaves):
        cells = coarsest * 2**octave
        rough = rng.uniform(-1, 1, (min(height, cells), min(width, cells))).astype(np.float32)
        total += np.asarray(cv2.resize(rough, (width, height), interpolation=cv2.INTER_CUBIC)) * 0.6**octave
    return np.asarray(np.clip(total / np.abs(total).max(), -1, 1), np.float32)


def pyramid(picture: Image) -> list[Image]:
    """Returns an image and its reductions by half down to 8 pixels, to draw it small without flicker."""
    levels = [picture]
    while min(levels[-1].shape[:2]) >= 16:  # The last level has at least 8 pixels.
        levels.append(np.asarray(cv2.pyrDown(levels[-1]), np.uint8))
    return levels


def level(levels: list[Image], height: float) -> Image:
    """Returns the smallest level with at least `height` pixels."""
    steps = int(np.floor(np.log2(max(1.0, levels[0].shape[0] / max(height, 1.0)))))
    return levels[min(steps, len(levels) - 1)]


def facade(seed: str, weather: Weather, storeys: int, bays: int) -> Image:
    """Returns a lit house front, RGB, with `storeys` by `bays` windows."""
    rng, noise = _generators(seed)
    height, width = int(storeys * STOREY * _SCALE), int(bays * BAY * _SCALE)
    wall = np.array(rng.choice(_WALLS)) * rng.uniform(0.75, 1.1)
    picture = np.full((height, width, 3), wall, np.float32)
    picture *= 1 + 0.09 * grain(noise, height, width, 5)[..., None]
    if rng.random() < 0.4:  # A share, here and below.
        _bricks(picture, rng)
    lines = rng.random() < 0.5
    window = (rng.uniform(0.42, 0.72), rng.uniform(0.5, 0.72))
    frame = np.array(rng.choice(((235, 235, 230), (70, 60, 55), (110, 112, 115), (180, 160, 130))))
    shop = rng.random() < 0.5
    for storey in range(storeys):
        bottom = height - storey * STOREY * _SCALE
        if lines and storey:
            cv2.rectangle(picture, (0, int(bottom) - 3), (width, int(bottom)), (wall * 0.72).tolist(), -1)
        if storey == 0 and shop:
            _shop(picture, rng, weather, bottom)
            continue
        for bay in range(bays):
            door = storey == 0 and bay == bays // 2
            _window(picture, (bay * BAY * _SCALE, bottom), window, frame, None if door else _glass(rng, weather))
    cv2.rectangle(picture, (0, 0), (width, int(0.35 * _SCALE)), (wall * rng.uniform(0.55, 0.9)).tolist(), -1)
    return _lit(picture, weather)


def wall(seed: str, weather: Weather) -> Image:
    """Returns a lit house side without windows, RGB, in the colour of the front with the same seed."""
    rng, noise = _generators(seed)
    picture = np.full((128, 128, 3), np.array(rng.choice(_WALLS)) * rng.uniform(0.75, 1.1), np.float32)
    picture *= 1 + 0.12 * grain(noise, 128, 128, 5)[..., None]
    if rng.random() < 0.4:
        _bricks(picture, rng)
    return _lit(picture, weather)


def foliage(seed: str, weather: Weather, *, tree: bool) -> tuple[Image, Image]:
    """Returns a lit crown or bush, RGB, and its shape: uint8, 0 where it is transparent."""
    rng, noise = _generators(seed)
    size = _FOLIAGE
    shape = np.zeros((size, size), np.uint8)
    picture = np.zeros((size, size, 3), np.float32)
    green = np.array(rng.choice(_GREENS)) * rng.uniform(0.8, 1.15)
    flat = 0.9 if tree else 1.0
    blobs = []
    for _ in range(rng.randint(70, 120)):
        angle, reach = rng.uniform(0, 2 * np.pi), rng.uniform(0, 1) ** 0.6
        x = 0.5 + 0.36 * reach * np.cos(angle)
        y = 0.5 + 0.38 * reach * np.sin(angle) * flat
        if not tree:
            y = 0.98 - abs(0.75 * reach * np.sin(angle)) * (1 - (2 * x - 1) ** 2 * 0.5)
        blobs.append((y, x, rng.uniform(0.05, 0.13)))
    blobs.sort(reverse=True)
    for y, x, radius in blobs:
        light = 0.62 + 0.55 * (1 - y) + rng.uniform(-0.14, 0.14) + 0.2 * weather.towards_sun[0] * (x - 0.5)
        centre = (int(x * size), int(y * size))
        points = _ragged(rng, centre, radius * size)
        cv2.fillPoly(shape, [points], 1)
        cv2.fillPoly(picture, [points], (green * light).tolist())
    leaves = grain(noise, size, size, 4, coarsest=20)
    picture *= 1 + 0.32 * leaves[..., None]
    gaps = grain(noise, size, size, 3, coarsest=12)
    edge = cv2.distanceTransform(shape, cv2.DIST_L2, 3)
    if tree:
        shape[(gaps > 0.52) & (edge < rng.uniform(12, 40))] = 0  # A share of the leaves.
    return _lit(picture, weather), shape


def hedge(seed: str, weather: Weather) -> Image:
    """Returns a lit trimmed hedge, RGB."""
    rng, noise = _generators(seed)
    picture = np.full((96, 768, 3), np.array(rng.choice(_GREENS)) * rng.uniform(0.75, 1.0), np.float32)
    picture *= np.linspace(1.2, 0.7, 96, dtype=np.float32)[:, None, None]
    picture *= 1 + 0.4 * np.asarray(cv2.resize(grain(noise, 96, 768, 3, coarsest=96), (768, 96)))[..., None]
    return _lit(picture, weather)


def sky(seed: int, weather: Weather, height: int, width: int) -> Image:
    """Returns the sky from the top of the image to the horizon, RGB, twice as wide as the image so that it can turn."""
    noise = np.random.default_rng([seed, 77])
    rows, columns = max(16, height // 4), max(32, width // 2)
    share = np.linspace(0, 1, rows, dtype=np.float32)[:, None, None] ** 0.8
    gradient = np.asarray(weather.zenith, np.float32) * (1 - share) + np.asarray(weather.skyline, np.float32) * share
    picture = np.repeat(gradient, columns, axis=1)
    clouds = grain(noise, rows, columns, 6, coarsest=3)
    cover = np.clip((clouds + weather.clouds * 1.5 - 0.75) * 2.2, 0, 0.92)[..., None]
    tone = 1 + 0.12 * grain(noise, rows, columns, 5)[..., None]
    fade = 1 - 0.5 * share
    picture = picture * (1 - cover * fade) + np.asarray(weather.cloud, np.float32) * tone * cover * fade
    large = cv2.resize(picture, (width * 2, height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(np.clip(large, 0, 255), np.uint8)


def asphalt(seed: int) -> npt.NDArray[np.float32]:
    """Returns a tileable brightness map of 16 m × 16 m asphalt, 1024×1024, from -1 to 1."""
    noise = np.random.default_rng([seed, 78])
    fine = noise.normal(0, 0.45, (1024, 1024)).astype(np.float32)
    rough = noise.normal(0, 1, (64, 64)).astype(np.float32)
    tiled = np.asarray(cv2.resize(np.tile(rough, (3, 3)), (3072, 3072), interpolation=cv2.INTER_CUBIC))
    fine = np.asarray(cv2.GaussianBlur(np.tile(fine, (2, 2)), (0, 0), 1.2))[512:1536, 512:1536] * 1.8
    fine = np.roll(fine, (512, 512), axis=(0, 1))
    return np.asarray(np.clip(fine * 0.8 + tiled[1024:2048, 1024:2048] * 0.35, -1, 1), np.float32)


def _generators(seed: str) -> tuple[Random, np.random.Generator]:
    rng = Random(seed)
    return rng, np.random.default_rng(rng.randrange(2**32))


def _lit(picture: npt.NDArray[np.float32], weather: Weather) -> Image:
    height, width = picture.shape[:2]
    normals = np.array([0.0, 0.3, -0.5])
    lit = np.clip(weather.lit(picture.reshape(-1, 3), normals), 0, 255)
    return np.asarray(lit.reshape(height, width, 3), np.uint8)


def _bricks(picture: npt.NDArray[np.float32], rng: Random) -> None:
    step = rng.choice((5, 6, 8))
    picture[::step] *= rng.uniform(0.75, 0.88)
    picture[1::step] *= 0.95


def _ragged(rng: Random, centre: tuple[int, int], radius: float) -> npt.NDArray[np.int32]:
    angles = np.linspace(0, 2 * np.pi, 11)[:-1]
    reaches = np.array([radius * rng.uniform(0.65, 1.2) for _ in angles])
    points = np.stack((np.cos(angles) * reaches, np.sin(angles) * reaches), axis=1) + centre
    return np.asarray(np.clip(points, 0, _FOLIAGE - 1), np.int32)


def _glass(rng: Random, weather: Weather) -> list[float]:
    if weather.lamps and rng.random() < 0.4:
        glow = rng.uniform(0.8, 1.1) / max(0.3, float(np.mean(weather.ambient)))
        return [250 * glow, 205 * glow, 130 * glow]
    shade = rng.uniform(35, 110)
    return [shade * 0.85, shade * 0.95, shade * 1.1]


def _window(
    picture: npt.NDArray[np.float32],
    corner: tuple[float, float],
    window: tuple[float, float],
    frame: npt.NDArray[np.int64],
    glass: list[float] | None,
) -> None:
    """Draws a window, or without `glass` a door, into the bay with the lower left `corner`.

    `window` is its share of the bay.
    """
    door = glass is None
    left = int(corner[0] + (1 - window[0]) / 2 * BAY * _SCALE)
    right = int(left + window[0] * BAY * _SCALE)
    bottom = int(corner[1] - (0.02 if door else 0.28) * STOREY * _SCALE)
    top = int(bottom - (0.78 if door else window[1] * 0.95) * STOREY * _SCALE)
    cv2.rectangle(picture, (left, top), (right, bottom), frame.tolist(), -1)
    if glass is None:
        cv2.rectangle(picture, (left + 5, top + 4), (right - 5, bottom), (frame * 0.45).tolist(), -1)
        return
    middle = (left + right) // 2
    cv2.rectangle(picture, (left + 2, top + 2), (middle - 1, bottom - 2), glass, -1)
    cv2.rectangle(picture, (middle + 1, top + 2), (right - 2, bottom - 2), glass, -1)
    cv2.rectangle(picture, (left + 2, top + 2), (right - 2, top + 7), [value * 0.7 for value in glass], -1)
    cv2.line(picture, (left - 2, bottom + 2), (right + 2, bottom + 2), (frame * 0.8).tolist(), 2)


def _shop(picture: npt.NDArray[np.float32], rng: Random, weather: Weather, bottom: float) -> None:
    width = picture.shape[1]
    top = int(bottom - 0.82 * STOREY * _SCALE)
    sign = [rng.uniform(30, 220) for _ in range(3)]
    cv2.rectangle(picture, (0, top - 10), (width, top + 6), sign, -1)
    for _ in range(int(width / 60)):
        x = rng.randrange(8, max(9, width - 30))
        cv2.rectangle(picture, (x, top - 6), (x + rng.randrange(5, 22), top + 2), [255 - value for value in sign], -1)
    left = 6
    while left < width - 20:
        right = min(width - 6, left + rng.randrange(50, 110))
        cv2.rectangle(picture, (left, top + 10), (right, int(bottom) - 6), _glass(rng, weather), -1)
        left = right + 6


_WALLS = palette("c4b296 ac604a cdc4b6 969698 be9669 d6ca96 967a68 a8b4bc 78706c cda08c 8c5c50 e4e0d8")
_GREENS = palette("547a34 466c2e 68863a 3e5e32 768438 5a7442")
