"""The street of a drive and its static objects, generated from the seed in chunks, so that the street is endless.

`s` is the distance of an object to the right of the street's centreline, `z` its distance along the street, in metres.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from random import Random

from rosbag_tools.drive.camera import Bend

_CURVATURE = 1 / 650  # Maximum curvature in 1/m, so that no house hides the street within 100 m.


@dataclass(frozen=True, slots=True)
class Street:
    """Properties of a drive's street, in metres, metres per second, and shares from 0 to 1."""

    seed: int
    lanes: int  # Number of lanes in each direction.
    lane_width: float
    parking: float  # Width of the parking strip on each side; 0 for none.
    sidewalk: float
    verge: float  # Width of the grass between kerb and sidewalk; 0 for none.
    setback: float  # Distance from the sidewalk to the houses.
    bend: Bend
    speed: float
    green: float  # Share of the lots that are parks.
    trees: float  # Share of tree positions that have a tree; likewise below.
    lamps: float  # Distance between lamp posts.
    parked: float
    walkers: float
    riders: float
    traffic: float
    storeys: tuple[int, int]
    dashes: bool  # The centreline is dashed.

    @property
    def road(self) -> float:
        """Distance from the centreline to the kerb."""
        return self.lanes * self.lane_width + self.parking

    @property
    def pavement(self) -> float:
        """Distance from the centreline to the beginning of the sidewalk, behind the verge."""
        return self.road + self.verge

    @property
    def edge(self) -> float:
        """Distance from the centreline to the far side of the sidewalk."""
        return self.pavement + self.sidewalk

    @property
    def front(self) -> float:
        """Distance from the centreline to the houses."""
        return self.edge + self.setback


def plan(seed: int) -> Street:
    """Generates the street of a drive."""
    rng = Random(f"street/{seed}")
    lengths = (rng.uniform(90, 160), rng.uniform(50, 80))
    share = rng.choice((0.0, rng.uniform(0.2, 1.0), rng.uniform(0.2, 1.0)))
    split = rng.uniform(0.3, 0.7)
    amplitudes = (share * split * _CURVATURE * lengths[0] ** 2, share * (1 - split) * _CURVATURE * lengths[1] ** 2)
    low = rng.randint(2, 4)
    return Street(
        seed=seed,
        lanes=rng.choice((1, 1, 2)),
        lane_width=rng.uniform(3.1, 3.6),
        parking=rng.choice((0.0, rng.uniform(2.1, 2.5), rng.uniform(2.1, 2.5))),
        sidewalk=rng.uniform(2.2, 4.2),
        verge=rng.choice((0.0, rng.uniform(1.2, 2.4))),
        setback=rng.choice((0.0, 0.3, rng.uniform(1.5, 4.0))),
        bend=Bend(amplitudes, lengths, (rng.uniform(0, 6.3), rng.uniform(0, 6.3))),
        speed=rng.uniform(8.0, 12.0),
        green=rng.uniform(0.1, 0.45),
        trees=rng.uniform(0.25, 0.8),
        lamps=rng.uniform(17.0, 30.0),
        parked=rng.uniform(0.3, 0.8),
        walkers=rng.uniform(0.35, 0.75),
        riders=rng.uniform(0.55, 0.9),
        traffic=rng.uniform(0.45, 0.85),
        storeys=(low, low + rng.randint(1, 3)),
        dashes=rng.random() < rng.uniform(0.4, 1.0),
    )


CHUNK = 24.0  # Length of a chunk of street, in metres.
CROSSING = (14.0, 22.0)  # Position of the side street in a chunk that has one, in metres.
ZEBRA = (8.5, 12.5)  # Position of the zebra crossing in a chunk that has one, in metres.


@dataclass(frozen=True, slots=True)
class House:
    """A building: a cuboid along the street. `side` is -1 (left) or 1 (right); `face` selects the facade."""

    side: int
    near: float
    far: float
    storeys: int
    roof: float  # Height of a pitched roof; 0 for a flat one.
    face: int


@dataclass(frozen=True, slots=True)
class Plant:
    """A tree (with a trunk) or a bush (without). `look` selects the foliage; `s` and `z` are as in the module's docstring."""

    s: float
    z: float
    trunk: float
    width: float
    height: float  # Height of the foliage, in metres.
    look: int


@dataclass(frozen=True, slots=True)
class Hedge:
    """A trimmed hedge along the street."""

    s: float
    near: float
    far: float
    height: float
    look: int


@dataclass(frozen=True, slots=True)
class Post:
    """A lamp post, a sign post or a traffic light; its arm points away from `side`."""

    kind: str
    s: float
    z: float
    side: int
    height: float
    radius: float
    look: int


@dataclass(frozen=True, slots=True)
class Mover:
    """A vehicle (also parked), a "person" or a "rider" at one point in time; `look` selects its model."""

    kind: str
    s: float
    z: float
    yaw: float  # Radians to the left.
    look: int
    phase: float = 0.0  # Phase of the step of a person or rider, in radians.


@dataclass(frozen=True, slots=True)
class Chunk:
    """All static objects along 24 m of street."""

    start: float
    side_street: bool
    zebra: bool
    green: tuple[bool, bool]  # True if the left or the right lot is grass.
    patch: float  # Brightness of the asphalt relative to other chunks.
    houses: tuple[House, ...]
    plants: tuple[Plant, ...]
    hedges: tuple[Hedge, ...]
    posts: tuple[Post, ...]
    parked: tuple[Mover, ...]


@lru_cache(maxsize=512)
def chunk(street: Street, index: int) -> Chunk:
    """Generates the chunk that begins at `index` × 24 m."""
    rng = Random(f"chunk/{street.seed}/{index}")
    start = index * CHUNK
    side_street = index % 5 == rng.randrange(5) or _chance(rng, 0.08)
    zebra = side_street or _chance(rng, 0.12)
    green = (_chance(rng, street.green), _chance(rng, street.green))
    houses: list[House] = []
    plants: list[Plant] = []
    hedges: list[Hedge] = []
    for side, is_green in zip((-1, 1), green, strict=True):
        if is_green:
            plants += _park(rng, street, side, start, side_street=side_street)
        else:
            houses += _houses(rng, street, side, start, side_street=side_street)
        hedges += _hedges(rng, street, side, start, side_street=side_street, is_green=is_green)
        plants += _row_of_trees(rng, street, side, start, side_street=side_street)
    return Chunk(
        start,
        side_street,
        zebra,
        green,
        rng.uniform(-1, 1),
        tuple(houses),
        tuple(plants),
        tuple(hedges),
        tuple(_posts(rng, street, start, side_street=side_street, zebra=zebra)),
        tuple(_parked(rng, street, start, zebra=zebra)),
    )


def _chance(rng: Random, share: float) -> bool:
    return rng.random() < share


def _houses(rng: Random, street: Street, side: int, start: float, *, side_street: bool) -> list[House]:
    ends = [start, start + (CROSSING[0] - 2.0 if side_street else CHUNK)]
    if not side_street and _chance(rng, 0.5):
        ends.insert(1, start + rng.uniform(9, 15))
    houses = []
    for near, far in pairwise(ends):
        storeys = rng.randint(*street.storeys)
        gap = rng.choice((0.0, 0.0, 1.5, 3.0))
        roof = rng.uniform(2.0, 4.0) if storeys <= rng.choice((2, 3)) else 0.0
        houses.append(House(side, near, far - gap, storeys, roof, rng.randrange(1000)))
    return houses


def _park(rng: Random, street: Street, side: int, start: float, *, side_street: bool) -> list[Plant]:
    length = CROSSING[0] - 3.0 if side_street else CHUNK
    plants = []
    for _ in range(rng.randint(2, 5)):
        place = (side * (street.front + rng.uniform(1.0, 10.0)), start + rng.uniform(1.0, length))
        plants.append(_tree(rng, *place))
    for _ in range(rng.randint(2, 5)):
        width = rng.uniform(1.2, 3.5)
        s = side * (street.edge + 0.8 + width / 2 + rng.uniform(0.0, 5.0))
        plants.append(
            Plant(s, start + rng.uniform(1.0, length), 0.0, width, rng.uniform(0.7, 1.8), rng.randrange(1000))
        )
    return plants


def _tree(rng: Random, s: float, z: float) -> Plant:
    size = rng.uniform(0.7, 1.3)
    return Plant(
        s,
        z,
        2.4 * size + rng.uniform(0.0, 0.8),
        4.2 * size * rng.uniform(0.8, 1.25),
        4.4 * size * rng.uniform(0.8, 1.3),
        rng.randrange(1000),
    )


def _hedges(rng: Random, street: Street, side: int, start: float, *, side_street: bool, is_green: bool) -> list[Hedge]:
    room = is_green or street.setback > 1.0
    if not room or not _chance(rng, 0.45):
        return []
    far = start + (CROSSING[0] - 3.0 if side_street else rng.uniform(10, CHUNK))
    return [Hedge(side * (street.edge + 0.5), start + 0.5, far, rng.uniform(0.7, 1.8), rng.randrange(1000))]


def _row_of_trees(rng: Random, street: Street, side: int, start: float, *, side_street: bool) -> list[Plant]:
    s = side * (street.road + (street.verge / 2 if street.verge else 0.6))
    places = (start + 5.0,) if side_street else (start + 4.0, start + 12.5, start + 20.0)
    trees = []
    for place in places:
        if _chance(rng, street.trees * 0.55):
            tree = _tree(rng, s, place + rng.uniform(-1.2, 1.2))
            trees.append(Plant(tree.s, tree.z, max(tree.trunk, 2.5), tree.width * 0.8, tree.height, tree.look))
    return trees


def _posts(rng: Random, street: Street, start: float, *, side_street: bool, zebra: bool) -> list[Post]:
    posts = []
    kerb = street.road + 0.45
    lamp_kind = rng.choice(("lamp", "lamp", "lantern"))
    for side, phase in ((-1, 0.5), (1, 0.0)):
        first = -(-(start + phase * street.lamps) // street.lamps) * street.lamps - phase * street.lamps
        while first < start + CHUNK:
            if first >= start and not (side_street and CROSSING[0] <= first - start <= CROSSING[1]):
                height = rng.uniform(6.5, 9.0) if lamp_kind == "lamp" else rng.uniform(3.8, 4.8)
                posts.append(
                    Post(lamp_kind, side * kerb, first, side, height, rng.uniform(0.06, 0.085), rng.randrange(1000))
                )
            first += street.lamps
        for _ in range(rng.choice((0, 1, 1, 2))):
            z = start + rng.uniform(0.5, CROSSING[0] - 1.0)
            posts.append(
                Post(
                    "sign",
                    side * (kerb + rng.uniform(0, 0.3)),
                    z,
                    side,
                    rng.uniform(2.5, 3.3),
                    rng.uniform(0.035, 0.06),
                    rng.randrange(1000),
                )
            )
        if side_street or (zebra and _chance(rng, 0.4)):
            z = start + ZEBRA[0] - 1.0
            posts.append(
                Post(
                    "light", side * kerb, z, side, rng.uniform(3.2, 4.0), rng.uniform(0.055, 0.075), rng.randrange(1000)
                )
            )
        if _chance(rng, 0.15):
            places = [start + rng.uniform(0.0, 6.0) + 1.6 * step for step in range(4)]
            posts += [Post("bollard", side * (street.road + 0.35), z, side, 1.0, 0.06, 0) for z in places]
    return posts


def _parked(rng: Random, street: Street, start: float, *, zebra: bool) -> list[Mover]:
    if not street.parking:
        return []
    parked = []
    length = ZEBRA[0] - 1.5 if zebra else CHUNK
    for side in (-1, 1):
        place = 0.3
        while place < length:
            kind = rng.choices(("car", "truck", "bus"), (0.86, 0.11, 0.03))[0]
            room = {"car": 5.6, "truck": 9.0, "bus": 13.0}[kind]
            if place + room > length:
                break
            if _chance(rng, street.parked):
                s = side * (street.road - street.parking / 2 - 0.05)
                yaw = (0.0 if side > 0 else 3.14159) + rng.uniform(-0.03, 0.03)
                parked.append(Mover(kind, s, start + place + room / 2, yaw, rng.randrange(100_000)))
            place += room
    return parked
