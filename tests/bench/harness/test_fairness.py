import pytest
from bench.harness.fairness import jain, max_min_shares
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("shares", "index"), [([1, 1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([0, 0], 1.0), ([3, 1], 16 / 20)]
)
def test_jains_index_is_the_papers(shares: list[float], index: float) -> None:
    """The figure that a fairness claim rests on."""
    assert jain(shares) == pytest.approx(index)


def test_nobody_gets_more_than_it_wants_or_than_one_that_wants_more() -> None:
    """What is left of a modest one's share goes to the others."""
    assert max_min_shares([10.0, 1.0, 4.0], 9.0) == [4.0, 1.0, 4.0]
    assert max_min_shares([1.0, 2.0], 9.0) == [1.0, 2.0]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=10), st.floats(0, 500))
def test_all_of_the_capacity_is_shared_where_it_is_wanted(wanted: list[float], capacity: float) -> None:
    """Otherwise a worker that wastes capacity would look fair."""
    shares = max_min_shares(wanted, capacity)
    assert sum(shares) == pytest.approx(min(capacity, sum(wanted)))
    assert all(share <= want + 1e-9 for share, want in zip(shares, wanted, strict=True))
