import pytest

from bench.baselines.catalogue import Baseline


@pytest.mark.parametrize(
    ("ratio", "by_round", "verdict"),
    [
        (0.08, [0.07, 0.1, 0.08], "≤ 0.1, met"),
        (0.08, [0.07, 0.11, 0.08], "≤ 0.1, met in 2 of 3 rounds"),
        (0.11, [0.09, 0.1, 0.1], "≤ 0.1, met in 3 of 3 rounds"),
        (0.3, [0.2, 0.3, 0.4], "≤ 0.1, NOT met"),
    ],
)
def test_a_target_is_met_if_every_round_meets_it(ratio: float, by_round: list[float], verdict: str) -> None:
    """The median of all rounds would hide a round that misses it."""
    assert Baseline("", (), 0.1).verdict(ratio, by_round) == verdict


def test_a_baseline_without_a_target_has_no_verdict() -> None:
    """The fifth system has no target."""
    assert not Baseline("", (), None).verdict(2.0, [2.0])
