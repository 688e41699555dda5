import numpy as np
import pytest

from bench.engines import REFERENCE, summarise
from bench.harness import Comparison

MASK = np.zeros((4, 5), np.uint8)


def _comparison(**journeys_ms: list[list[float]]) -> Comparison:
    """A comparison of TensorFlow with another engine: journeys by round, inference in half of their time."""
    names = {"reference": REFERENCE, "other": "other"}
    comparison = Comparison(list(names.values()))
    for name, rounds in journeys_ms.items():
        for journey_ms in rounds:
            comparison.add(
                names[name],
                {"total": journey_ms, "bare": [journey_ms[0] / 2], "period": [journey_ms[0] / 1e3]},
            )
    return comparison


def test_an_engine_is_compared_within_rounds_and_over_all() -> None:
    """The ratio is the reference's time divided by the engine's, also for throughput."""
    comparison = _comparison(reference=[[20.0, 20.0], [200.0, 200.0]], other=[[10.0, 10.0], [100.0, 100.0]])
    masks = {name: {"000000.png": MASK} for name in (REFERENCE, "other")}
    found = summarise(comparison, masks, "other")
    for measure in ("journey", "bare", "throughput"):
        assert found["times_faster"][measure]["by_round"] == pytest.approx([2.0, 2.0])
        assert found["times_faster"][measure]["min"] == pytest.approx(2.0)
    assert found["journey_hz"] == pytest.approx([100.0, 10.0])
    assert found["samples"] == {"journey": 4, "bare": 2}


def test_agreement_is_the_share_of_equal_pixels_in_common_masks() -> None:
    """A frame that only one of them answered cannot be compared."""
    changed = MASK.copy()
    changed[0] = 3
    masks = {REFERENCE: {"000000.png": MASK, "000001.png": MASK}, "other": {"000000.png": changed}}
    found = summarise(_comparison(reference=[[1.0]], other=[[1.0]]), masks, "other")
    assert found["agreement"] == pytest.approx(0.75)
    assert found["masks_compared"] == 1
