from itertools import islice, pairwise, takewhile

import pytest

from bench.fleet.fleet_run import FleetArrivals, schedules

_S = 1_000_000_000


def test_a_seed_always_gives_the_same_times() -> None:
    """A printed seed repeats the arrivals of a run."""
    first, again, other = (schedules(FleetArrivals.POISSON, 3, 2.0, seed) for seed in (7, 7, 8))
    times = [[list(islice(each, 10)) for each in vehicles] for vehicles in (first, again, other)]
    assert times[0] == times[1] != times[2]


def test_vehicles_of_a_constant_rate_do_not_send_together() -> None:
    """Cameras are not synchronised: the first frames are due at different times of the first interval."""
    starts = [next(each) for each in schedules(FleetArrivals.UNIFORM, 50, 1.0, 1)]
    assert len(set(starts)) == 50
    assert 0 <= min(starts) < max(starts) < _S


def test_a_constant_rate_has_equal_gaps() -> None:
    """Only the phase is random."""
    (times,) = schedules(FleetArrivals.UNIFORM, 1, 4.0, 1)
    assert {later - earlier for earlier, later in pairwise(islice(times, 10))} == {_S // 4}


def test_poisson_vehicles_together_have_the_wanted_rate() -> None:
    """Twenty vehicles at 2 Hz make 40 frames per second, within the noise of 4,000 frames."""
    vehicles = schedules(FleetArrivals.POISSON, 20, 2.0, 3)
    counts = [len(list(takewhile(lambda at_ns: at_ns < 100 * _S, each))) for each in vehicles]
    assert sum(counts) == pytest.approx(4000, rel=0.1)


def test_saturated_vehicles_have_no_schedule() -> None:
    """Their windows decide."""
    assert schedules(FleetArrivals.SATURATED, 5, 1.0, 1) == []
