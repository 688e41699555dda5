"""Arrivals: when the frames of an open loop fall due, settled before the first of them is sent."""

import math
import random
from collections.abc import Iterator
from enum import StrEnum
from itertools import count


class Arrivals(StrEnum):
    """What an open loop's frames fall due by."""

    SOURCE = "source"  # The times at which the source recorded them.
    UNIFORM = "uniform"  # Every so often, as from one camera.
    POISSON = "poisson"  # At any moment, whenever the last was, as from many vehicles that know nothing of each other.


def uniform_ns(rate_hz: float) -> Iterator[int]:
    """Nanoseconds from the start at which frames fall due, without end: k / rate. The first falls due at once."""
    return (round(number * 1e9 / rate_hz) for number in count())


def poisson_ns(rate_hz: float, seed: int) -> Iterator[int]:
    """Nanoseconds from the start at which frames of a Poisson process fall due, without end; the first at once.

    Its gaps are exponential with mean 1 / rate: -ln(1 - U) / rate with U uniform in [0, 1), by the inverse of the
    distribution (Knuth, The Art of Computer Programming, volume 2, section 3.4.1 D). One seed gives one schedule.
    """
    chance = random.Random(seed)
    at_s = 0.0
    while True:
        yield round(at_s * 1e9)
        at_s -= math.log(1.0 - chance.random()) / rate_hz
