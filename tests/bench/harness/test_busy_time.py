"""What is covered by spans that may lie in one another."""

import pytest
from bench.harness.busy_time import covered, covered_share


@pytest.mark.parametrize(
    ("spans", "inside", "share"),
    [
        ([], 0, 0.0),
        ([(5, 9)], 4, 1.0),
        ([(10, 20), (0, 10)], 20, 1.0),
        ([(0, 10), (30, 40)], 20, 0.5),
        ([(0, 10), (0, 10), (5, 15), (15, 20), (2, 3), (30, 40)], 30, 0.75),
    ],
)
def test_no_moment_counts_twice(spans: list[tuple[int, int]], inside: int, share: float) -> None:
    """Frames of a batch are there together, and several batches may be."""
    assert (covered(spans), covered_share(spans)) == (inside, share)
