from collections import Counter

import pytest

from bench.load.load_clients import ClientTally
from bench.performance.gateway import summarise_round

_S = 10**9


def _tally(name: str, answered_s: list[float], **outcomes: int) -> ClientTally:
    answered_ns = [round(at * _S) for at in answered_s]
    return ClientTally(name, "mqtt", sum(outcomes.values()), Counter(outcomes), answered_ns)


def test_only_masks_within_the_round_count() -> None:
    """Clients connect at its start, and the last frames are answered after its end: both would change the rate."""
    tallies = [_tally("a", [1, 3, 4, 13], answered=4), _tally("b", [2.5, 5, 11.9], answered=3, dropped=1)]
    result = summarise_round(tallies, (0, 12 * _S), bare_hz=1.0)
    assert result["answers"] == {"a": 2, "b": 3}
    assert result["answered_hz"] == pytest.approx(0.5)
    assert result["ratio"] == pytest.approx(0.5)
    assert result["least_to_most"] == pytest.approx(2 / 3)
    assert result["outcomes"] == {"answered": 7, "unreachable": 1}


def test_a_client_without_masks_lowers_the_fairness() -> None:
    """An endpoint that starves must not vanish in the mean."""
    result = summarise_round([_tally("a", [3, 4]), _tally("b", [])], (0, 12 * _S), bare_hz=1.0)
    assert result["jain"] == pytest.approx(0.5)
    assert result["least_to_most"] == 0
