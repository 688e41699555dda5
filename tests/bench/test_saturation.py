from collections import Counter
from pathlib import Path

import pytest

from bench.load_generator import OfferedLoad, VehicleTally
from bench.saturation import Plan, judged, offered_loads


def _tally(name: str, offered: int, answered: int) -> VehicleTally:
    outcomes = Counter({"answered": answered, "dropped": offered - answered})
    return VehicleTally(name, offered, answered, outcomes, tuple([100.0] * answered))


def test_the_offered_loads_sum_to_the_factor() -> None:
    """Twice the capacity must be twice the capacity, whoever offers most of it."""
    plan = Plan(models=Path("models"), vehicles=8, factor=2.0)
    for is_greedy in (False, True):
        rates = [load.rate_hz for load in offered_loads(plan, 10.0, is_greedy=is_greedy)]
        assert sum(rates) == pytest.approx(20.0)
        assert max(rates) / min(rates) == pytest.approx(10.0 if is_greedy else 1.0)


def test_equal_vehicles_that_get_the_same_are_fair() -> None:
    """The figure must be 1 where nothing is wrong, and every frame is counted."""
    offered = [OfferedLoad(f"v{i}", 2.0, 4) for i in range(4)]
    found = judged("equal", offered, [_tally(load.name, 20, 10) for load in offered], 4.0, 10.0)
    assert [found.jain, found.share] == pytest.approx([1.0, 1.0])
    assert found.unaccounted == 0
    assert found.outcomes == {"answered": 40, "dropped": 40}


def test_a_greedy_vehicle_that_takes_from_the_others_shows() -> None:
    """Ten times the offer must not be more than what the others leave."""
    offered = [OfferedLoad("greedy", 10.0, 4), OfferedLoad("a", 1.0, 4), OfferedLoad("b", 1.0, 4)]
    fair = judged("greedy", offered, [_tally("greedy", 100, 20), _tally("a", 10, 10), _tally("b", 10, 10)], 4.0, 10.0)
    assert [fair.jain, fair.greedy_share] == pytest.approx([1.0, 1.0])
    unfair = judged("greedy", offered, [_tally("greedy", 100, 34), _tally("a", 10, 3), _tally("b", 10, 3)], 4.0, 10.0)
    assert unfair.jain < 0.7
    assert unfair.greedy_share is not None
    assert unfair.greedy_share > 1.5
