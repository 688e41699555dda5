import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.statistics.samples import busy_share, busy_time, jain, max_min_shares, slope


@pytest.mark.parametrize(
    ("spans", "busy", "share"),
    [
        ([], 0, 0.0),
        ([(5, 9)], 4, 1.0),
        ([(10, 20), (0, 10)], 20, 1.0),
        ([(0, 10), (30, 40)], 20, 0.5),
        ([(0, 10), (0, 10), (5, 15), (15, 20), (2, 3), (30, 40)], 30, 0.75),
    ],
)
def test_overlapping_spans_count_once(spans: list[tuple[int, int]], busy: int, share: float) -> None:
    """The frames of a batch share one span, and several batches may overlap."""
    assert (busy_time(spans), busy_share(spans)) == (busy, share)


@pytest.mark.parametrize(
    ("shares", "index"), [([1, 1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([0, 0], 1.0), ([3, 1], 16 / 20)]
)
def test_jains_index_follows_its_definition(shares: list[float], index: float) -> None:
    """Claims about fairness are based on this value."""
    assert jain(shares) == pytest.approx(index)


def test_max_min_shares_give_the_rest_of_small_demands_to_large_ones() -> None:
    """No share exceeds its demand."""
    assert max_min_shares([10.0, 1.0, 4.0], 9.0) == [4.0, 1.0, 4.0]
    assert max_min_shares([1.0, 2.0], 9.0) == [1.0, 2.0]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=10), st.floats(0, 500))
def test_max_min_shares_use_the_whole_capacity_if_it_is_demanded(demands: list[float], capacity: float) -> None:
    """Otherwise a worker that wastes capacity would look fair."""
    shares = max_min_shares(demands, capacity)
    assert sum(shares) == pytest.approx(min(capacity, sum(demands)))
    assert all(share <= demand + 1e-9 for share, demand in zip(shares, demands, strict=True))


def test_a_slope_ignores_temporary_jumps() -> None:
    """Memory jumps when a buffer grows and when it is freed; a leak is the trend over time."""
    times = list(range(600))
    leak = [100.0 + 0.01 * at + (50.0 if 200 < at < 260 else 0.0) for at in times]
    assert slope(times, leak) == pytest.approx(0.01, rel=0.1)


def test_a_single_step_has_no_slope() -> None:
    """A process that takes more memory once and then stays constant does not leak; a regression line would rise."""
    assert slope(range(400), [100.0] * 60 + [120.0] * 340) == 0.0


def test_the_slope_of_a_long_series_uses_a_part_of_it() -> None:
    """Eight hours of samples per second have 400 million pairs."""
    times = range(28_800)
    assert slope(times, [5.0 * at for at in times]) == pytest.approx(5.0)


@pytest.mark.parametrize(("times", "values"), [([], []), ([1.0], [7.0]), ([1.0, 1.0], [7.0, 8.0])])
def test_samples_at_one_time_have_no_slope(times: list[float], values: list[float]) -> None:
    """A process that was killed at once must not count as one that does not grow."""
    assert slope(times, values) is None
