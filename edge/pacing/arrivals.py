"""Schedules of an open loop: when frames arrive."""

import math
import random
from collections.abc import Iterator
from enum import StrEnum
from itertools import count


class Arrivals(StrEnum):
    """The schedule of an open loop."""

    SOURCE = "source"  # The times at which the source recorded the frames.
    UNIFORM = "uniform"  # A constant rate, as from one camera.
    POISSON = "poisson"  # A Poisson process, as from many independent vehicles.


def uniform_ns(rate_hz: float) -> Iterator[int]:
    """Yields due times at a constant rate, in nanoseconds from the first one, without end."""
    return (round(number * 1e9 / rate_hz) for number in count())


def poisson_ns(rate_hz: float, seed: int) -> Iterator[int]:
    """Yields due times of a Poisson process, in nanoseconds from the first one, without end.

    The gaps are exponential with mean 1 / rate: -ln(1 - U) / rate with U uniform in [0, 1), by inversion of the
    distribution (Knuth, The Art of Computer Programming, volume 2, section 3.4.1 D). A seed always gives the same times.
    """
    generator = random.Random(seed)
    at_s = 0.0
    while True:
        yield round(at_s * 1e9)
        at_s -= math.log(1.0 - generator.random()) / rate_hz
