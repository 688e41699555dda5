import pytest
from bench.harness.slope import slope


def test_a_leak_shows_through_jumps() -> None:
    """Memory jumps up when a buffer grows and down when one is freed: what counts is where it goes over time."""
    times = list(range(600))
    leak = [100.0 + 0.01 * at + (50.0 if 200 < at < 260 else 0.0) for at in times]
    assert slope(times, leak) == pytest.approx(0.01, rel=0.1)


def test_one_step_is_no_slope() -> None:
    """A process that takes more memory once and then stays there does not grow; a line through it would say so."""
    assert slope(range(400), [100.0] * 60 + [120.0] * 340) == 0.0


def test_a_long_soak_is_sampled_evenly() -> None:
    """Eight hours of seconds are 400 million pairs: some of them must do, and tell the same."""
    times = range(28_800)
    assert slope(times, [5.0 * at for at in times]) == pytest.approx(5.0)


def test_one_moment_has_no_slope() -> None:
    """A process that was killed at once must not count as one that does not grow."""
    assert slope([], []) is None
    assert slope([1.0], [7.0]) is None
    assert slope([1.0, 1.0], [7.0, 8.0]) is None
