"""The dimensions and the character of a drive's street, generated from the seed."""

from dataclasses import dataclass
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
    trees: float  # Share of the places for trees that have one; the next ones likewise.
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
