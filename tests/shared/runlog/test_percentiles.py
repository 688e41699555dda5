import math

import numpy as np
import pytest

from shared.runlog.percentiles import has_percentile, percentiles, shown


@pytest.mark.parametrize(
    ("percent", "count", "expected"),
    [(50, 1, True), (95, 1, True), (99, 99, False), (99, 100, True), (99.9, 999, False), (99.9, 1000, True)],
)
def test_a_percentile_is_reported_only_where_a_value_lies_beyond_it(
    percent: float, count: int, *, expected: bool
) -> None:
    """p99 of twelve frames is the slowest frame under a grander name."""
    assert has_percentile(percent, count) is expected
    (found,) = percentiles(np.arange(count), (percent,))
    assert math.isfinite(found) is expected


def test_no_value_has_no_percentile() -> None:
    """An empty column is a dash."""
    (found,) = percentiles([], (50.0,))
    assert shown(found) == shown(None) == "–"
    assert shown(1.234, 1) == "1.2"
