import math

import numpy as np
import pytest

from shared.runlog.percentiles import has_percentile, percentiles, shown


@pytest.mark.parametrize(
    ("percent", "count", "expected"),
    [(50, 1, True), (95, 1, True), (99, 99, False), (99, 100, True), (99.9, 999, False), (99.9, 1000, True)],
)
def test_a_percentile_needs_a_large_enough_sample(percent: float, count: int, *, expected: bool) -> None:
    """The p99 of twelve frames would simply be the slowest frame."""
    assert has_percentile(percent, count) is expected
    (found,) = percentiles(np.arange(count), (percent,))
    assert math.isfinite(found) is expected


def test_an_empty_sample_is_shown_as_a_dash() -> None:
    """Its percentiles are NaN."""
    (found,) = percentiles([], (50.0,))
    assert shown(found) == shown(None) == "–"
    assert shown(1.234, 1) == "1.2"
