import pytest

from bench.baselines.cli import Baseline


@pytest.mark.parametrize(
    ("ratio", "by_round", "verdict"),
    [
        (0.08, [0.075, 0.08, 0.09], "≤ 0.1, met"),
        (0.08, [0.07, 0.11, 0.08], "≤ 0.1, not decided: the spread is larger than the distance from the target"),
        (0.3, [0.25, 0.3, 0.4], "≤ 0.1, NOT met"),
    ],
)
def test_the_verdict_on_a_target_needs_rounds_that_agree(ratio: float, by_round: list[float], verdict: str) -> None:
    """The median of all rounds would hide a round that misses the target."""
    assert Baseline("", (), 0.1).verdict(ratio, by_round) == verdict


def test_a_baseline_without_a_target_has_no_verdict() -> None:
    """The fifth system has no target."""
    assert not Baseline("", (), None).verdict(2.0, [2.0])
