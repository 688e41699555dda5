from collections import Counter
from pathlib import Path

import pytest

from bench.load.load_clients import ClientTally
from bench.performance.saturation import SaturationPlan, offered_rates_hz, summarise_round

_S = 10**9
_SPAN_NS = (0, 12 * _S)


def _tally(offered: int, answered: int) -> ClientTally:
    """A vehicle whose masks arrived in time, evenly from the third second to the last."""
    outcomes = Counter({"answered": answered, "dropped": offered - answered})
    answered_ns = [2 * _S + place * 10 * _S // answered for place in range(answered)]
    return ClientTally("car", "mqtt", offered, outcomes, answered_ns, [100.0] * answered)


def test_the_offered_loads_sum_to_the_factor() -> None:
    """A greedy vehicle changes the distribution of the load, not its sum."""
    plan = SaturationPlan(models=Path("models"), vehicles=8, factor=2.0)
    for is_greedy in (False, True):
        rates = offered_rates_hz(plan, 10.0, is_greedy=is_greedy)
        assert sum(rates) == pytest.approx(20.0)
        assert max(rates) / min(rates) == pytest.approx(10.0 if is_greedy else 1.0)


def test_equal_vehicles_with_equal_throughput_are_fair() -> None:
    """Jain's index is 1, and every frame is counted."""
    result = summarise_round("equal", [2.0] * 4, [_tally(20, 10)] * 4, _SPAN_NS, 4.0)
    assert [result["jain"], result["share"]] == pytest.approx([1.0, 1.0])
    assert result["unaccounted"] == 0
    assert result["outcomes"] == {"answered": 40, "dropped": 40}


def test_a_greedy_vehicle_that_displaces_others_lowers_the_fairness() -> None:
    """A vehicle with ten times the load may only use what the others leave."""
    rates_hz = [10.0, 1.0, 1.0]
    even = [_tally(100, 20), _tally(10, 10), _tally(10, 10)]
    fair = summarise_round("greedy", rates_hz, even, _SPAN_NS, 4.0)
    assert [fair["jain"], fair["greedy_share"]] == pytest.approx([1.0, 1.0])
    uneven = [_tally(100, 34), _tally(10, 3), _tally(10, 3)]
    unfair = summarise_round("greedy", rates_hz, uneven, _SPAN_NS, 4.0)
    assert unfair["jain"] < 0.7
    assert unfair["greedy_share"] is not None
    assert unfair["greedy_share"] > 1.5


def test_masks_after_the_end_of_a_round_do_not_count_as_throughput() -> None:
    """The queue is answered after the round; ten frames of 150 would add seven per cent."""
    answered_ns = [1 * _S, 3 * _S, 4 * _S, 11 * _S, 12 * _S, 13 * _S]
    tally = ClientTally("car", "mqtt", 6, Counter(answered=6), answered_ns, [100.0] * 6)
    result = summarise_round("equal", [1.0], [tally], _SPAN_NS, 1.0)
    assert result["in_time_hz"] == pytest.approx(0.3)
    assert result["outcomes"] == {"answered": 6}
