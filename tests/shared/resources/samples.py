"""Reading what a sampler wrote."""

import csv
import time
from pathlib import Path

from shared.resources.sampler import ResourceSampler

OWN = "vehicle/car"
SECOND_NS = 1_000_000_000
WAIT_S = 60.0


def rows(path: Path) -> list[dict[str, str]]:
    """What was sampled, as text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def wait_for_samples(sampler: ResourceSampler, count: int) -> None:
    """Wait until there are so many."""
    until_s = time.monotonic() + WAIT_S
    while sampler.samples < count:
        assert time.monotonic() < until_s
        time.sleep(0.01)
