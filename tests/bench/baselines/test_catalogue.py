import pytest

from bench.baselines.catalogue import Baseline


@pytest.mark.parametrize(
    ("ratio", "by_round", "told"),
    [
        (0.08, [0.07, 0.1, 0.08], "≤ 0.1, met"),
        (0.08, [0.07, 0.11, 0.08], "≤ 0.1, met in 2 of 3 rounds"),
        (0.11, [0.09, 0.1, 0.1], "≤ 0.1, met in 3 of 3 rounds"),
        (0.3, [0.2, 0.3, 0.4], "≤ 0.1, NOT met"),
    ],
)
def test_a_target_is_met_where_no_round_misses_it(ratio: float, by_round: list[float], told: str) -> None:
    """The median of all rounds hides the one in which it was missed."""
    assert Baseline("", (), 0.1).verdict(ratio, by_round) == told


def test_without_a_target_nothing_is_judged() -> None:
    """A comparison need not have one."""
    assert not Baseline("", (), None).verdict(2.0, [2.0])
