import math

import pytest

from shared.runlog.mean_interval import mean_interval


@pytest.mark.parametrize("values", [[], [0.4], [0.064, 0.384], [0.415, 0.415, 0.415]])
def test_few_or_equal_values_have_no_interval(values: list[float]) -> None:
    """Two runs can agree by chance, and runs that replay one recording always do: neither shows how others would differ."""
    assert all(map(math.isnan, mean_interval(values, share_of=1)))


def test_an_interval_of_shares_within_their_range_is_students() -> None:
    """Whether values are shares changes nothing as long as the interval makes sense."""
    assert mean_interval([0.4, 0.5, 0.6], share_of=1) == mean_interval([0.4, 0.5, 0.6])
    assert mean_interval([0.4, 0.5, 0.6]) == pytest.approx((0.5 - 0.2484, 0.5 + 0.2484), abs=1e-4)


@pytest.mark.parametrize("share_of", [1, 100])
def test_an_interval_of_shares_never_leaves_their_range(share_of: float) -> None:
    """The end that would is not cut off there, and the other one stays: three runs of 0 to 0.01 cannot reach 0.2."""
    values = [share_of * share for share in (0.0, 0.0, 0.122, 0.0, 0.15)]
    low, high = (end / share_of for end in mean_interval(values, share_of=share_of))
    assert mean_interval(values)[0] < 0
    assert (low, high) == pytest.approx((0.0093, 0.1477), abs=1e-4)
    mirrored = mean_interval([share_of - value for value in values], share_of=share_of)
    assert mirrored == pytest.approx((share_of * (1 - high), share_of * (1 - low)))
