"""The rule of the cascade."""

import numpy as np
import pytest

from shared.errors import SkylaneError
from shared.reuse.tuning import CascadeThresholds, is_sure
from shared.task import Confidence

THRESHOLDS = CascadeThresholds(0.2, 0.9)


def _sure(*scores: float, two_sided: bool) -> bool:
    return is_sure(Confidence(np.array(scores, np.float32), two_sided), THRESHOLDS)


@pytest.mark.parametrize(
    ("score", "expected"), [(0.0, True), (0.2, True), (0.21, False), (0.89, False), (0.9, True), (1.0, True)]
)
def test_a_probability_of_yes_is_certain_at_both_ends(score: float, expected: bool) -> None:  # noqa: FBT001
    """The thresholds themselves are certain, also as float32."""
    assert _sure(score, two_sided=True) is expected


@pytest.mark.parametrize(("score", "expected"), [(0.0, False), (0.2, False), (0.89, False), (0.9, True), (1.0, True)])
def test_a_share_of_certain_pixels_must_be_high(score: float, expected: bool) -> None:  # noqa: FBT001
    """No certain pixel is no certain answer, so `c_low` does not apply."""
    assert _sure(score, two_sided=False) is expected


def test_every_box_must_be_certain() -> None:
    """Without boxes nothing is uncertain."""
    assert _sure(0.95, 0.91, 0.1, two_sided=True)
    assert not _sure(0.95, 0.5, 0.1, two_sided=True)
    assert _sure(two_sided=True)


@pytest.mark.parametrize("thresholds", [(0.9, 0.2), (0.5, 0.5), (-0.1, 0.5), (0.1, 1.1), (float("nan"), 0.5)])
def test_thresholds_must_be_in_order_and_in_range(thresholds: tuple[float, float]) -> None:
    """The message shows the given values and an example."""
    with pytest.raises(SkylaneError, match=r"give 0 <= c_low < c_high <= 1"):
        CascadeThresholds(*thresholds)
