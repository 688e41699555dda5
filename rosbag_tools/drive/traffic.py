"""Moving objects (vehicles, riders, persons): functions of the seed, the time and the motion of the camera."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, pi
from random import Random
from typing import NamedTuple

from rosbag_tools.drive.world import CHUNK, ZEBRA, Mover, Street, chunk

BEHIND, AHEAD = -14.0, 100.0  # Range around the camera in which objects are drawn, in metres.
_LEAD_PERIOD = 22.0  # Time for which one vehicle drives ahead of the camera, in seconds.
_BUSY = ("car", "car", "car", "truck", "bus")


@dataclass(frozen=True, slots=True)
class Ego:
    """Motion of the camera along the street, `s` metres right of the centreline; `speed` in m/s, 0 for a static camera."""

    s: float
    speed: float

    def z(self, time_s: float) -> float:
        """Returns the position along the street, in metres."""
        return self.speed * time_s


def movers(street: Street, ego: Ego, time_s: float) -> Iterator[Mover]:
    """Yields all moving objects near the camera: from 14 m behind to 100 m ahead of it."""
    now = _Now(ego.z(time_s), time_s)
    yield from _vehicles(street, ego, now)
    yield from _riders(street, now)
    yield from _walkers(street, now)
    yield from _crossers(street, ego, now)


class _Now(NamedTuple):
    """Position of the camera in metres along the street, and the time."""

    z: float
    time_s: float


def _slots(name: str, spacing: float, speed: float, now: _Now) -> Iterator[tuple[Random, float]]:
    """Yields the slots of an endless stream near the camera: a random generator and the position of each."""
    travelled = speed * now.time_s
    first = floor((now.z + BEHIND - travelled) / spacing) - 1
    last = ceil((now.z + AHEAD - travelled) / spacing)
    for index in range(first, last + 1):
        rng = Random(f"{name}/{index}")
        place = index * spacing + rng.uniform(0.0, 0.38) * spacing + travelled
        if now.z + BEHIND < place < now.z + AHEAD:
            yield rng, place


def _vehicles(street: Street, ego: Ego, now: _Now) -> Iterator[Mover]:
    for lane in range(street.lanes):
        middle = (lane + 0.5) * street.lane_width
        oncoming = Random(f"oncoming/{street.seed}/{lane}").uniform(7.0, 11.0)
        yield from _lane(street, f"oncoming{lane}", -middle, -oncoming, now)
        if ego.speed and abs(middle - ego.s) < street.lane_width / 2:
            yield from _lead(street, ego, now)
            continue
        faster = 2.5 if middle < ego.s else -2.5
        yield from _lane(street, f"along{lane}", middle, street.speed + faster, now)


def _lane(street: Street, name: str, s: float, speed: float, now: _Now) -> Iterator[Mover]:
    for rng, place in _slots(f"{name}/{street.seed}", 30.0, speed, now):
        if rng.random() < street.traffic:
            yaw = 0.0 if speed > 0 else pi
            yield Mover(rng.choice(_BUSY), s + rng.uniform(-0.2, 0.2), place, yaw, rng.randrange(100_000))


def _lead(street: Street, ego: Ego, now: _Now) -> Iterator[Mover]:
    """Yields the vehicle ahead in the camera's lane: it comes nearer, then moves away, then another one follows."""
    shifted = now.time_s / _LEAD_PERIOD + Random(f"lead/{street.seed}").random()
    rng = Random(f"lead/{street.seed}/{floor(shifted)}")
    nearest = rng.uniform(13.0, 32.0)
    gap = nearest + (AHEAD + 8.0 - nearest) * (2.0 * (shifted % 1.0) - 1.0) ** 2
    if gap < AHEAD:
        yield Mover(rng.choice(_BUSY), ego.s - 0.15, now.z + gap, 0.0, rng.randrange(100_000))


def _riders(street: Street, now: _Now) -> Iterator[Mover]:
    for side in (1, -1):
        speed = side * Random(f"rider/{street.seed}/{side}").uniform(3.8, 5.5)
        for rng, place in _slots(f"rider/{street.seed}/{side}", 30.0, speed, now):
            if rng.random() < street.riders:
                s = side * (street.lanes * street.lane_width - 0.2 - rng.uniform(0.0, 0.1))
                yaw = (0.0 if side > 0 else pi) + rng.uniform(-0.05, 0.05)
                yield Mover(
                    "rider", s, place, yaw, phase=now.time_s * 6.0 + rng.uniform(0, 6.3), look=rng.randrange(100_000)
                )


def _walkers(street: Street, now: _Now) -> Iterator[Mover]:
    for side in (-1, 1):
        for speed in (1.35, -1.2, 0.0):
            spacing = 26.0 if speed == 0.0 else 11.0
            for rng, place in _slots(f"walker/{street.seed}/{side}/{speed}", spacing, speed, now):
                if rng.random() < street.walkers:
                    s = side * (street.pavement + 0.4 + rng.random() * (street.sidewalk - 0.8))
                    yaw = (
                        rng.uniform(-pi, pi) if speed == 0.0 else (0.0 if speed > 0 else pi) + rng.uniform(-0.15, 0.15)
                    )
                    phase = rng.uniform(0, 6.3) if speed else 0.0
                    yield Mover("person", s, place, yaw, rng.randrange(100_000), phase + abs(speed) * now.time_s * 4.2)


def _crossers(street: Street, ego: Ego, now: _Now) -> Iterator[Mover]:
    """Yields persons on zebra crossings; the camera's lane is free when the camera arrives."""
    for index in range(floor((now.z + BEHIND) / CHUNK), floor((now.z + AHEAD) / CHUNK) + 1):
        if not chunk(street, index).zebra:
            continue
        rng = Random(f"crossers/{street.seed}/{index}")
        for _ in range(rng.randint(1, 3)):
            place = index * CHUNK + rng.uniform(*ZEBRA)
            way = rng.choice((-1, 1))
            lead = rng.uniform(7.0, 11.0)
            pace = rng.uniform(1.3, 1.6)
            look = rng.randrange(100_000)
            span = 2.0 * (street.road + 0.8)
            started = place / ego.speed - lead if ego.speed else lead - 10.0
            walked = (now.time_s - started) * pace
            if not ego.speed:
                walked %= span * 1.6
            going = 0.0 < walked < span
            s = way * (min(max(walked, 0.0), span) - span / 2)
            yield Mover("person", s, place, -way * pi / 2, look, walked * 4.2 / 1.35 if going else 0.0)
