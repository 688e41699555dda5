import numpy as np
import pytest

from bench.engines.engine_comparison import REFERENCE, Turns, figures

MASK = np.zeros((4, 5), np.uint8)


def _turns(journey_ms: list[list[float]], bare_ms: list[list[float]], journey_hz: list[float]) -> Turns:
    return Turns(journey_ms, bare_ms, journey_hz)


def test_ratios_are_taken_within_a_round_and_over_all() -> None:
    """A machine that slows down half-way slows both: the ratio of a round stays what it is."""
    turns = {
        REFERENCE: _turns([[20.0, 20.0], [200.0, 200.0]], [[10.0], [100.0]], [50.0, 5.0]),
        "other": _turns([[10.0, 10.0], [100.0, 100.0]], [[4.0], [40.0]], [100.0, 10.0]),
    }
    masks = {name: {"000000.png": MASK} for name in turns}
    found = figures(turns, masks, "other")
    assert found["times_faster"]["journey"]["by_round"] == [2.0, 2.0]
    assert found["times_faster"]["bare"]["by_round"] == [2.5, 2.5]
    assert found["times_faster"]["throughput"]["by_round"] == [2.0, 2.0]
    assert found["times_faster"]["journey"]["min"] == 2.0
    assert found["samples"] == {"journey": 4, "bare": 2}


def test_agreement_counts_the_pixels_of_the_masks_that_both_sent_back() -> None:
    """A frame that only one of them answered cannot be compared."""
    turns = {name: _turns([[1.0]], [[1.0]], [1.0]) for name in (REFERENCE, "other")}
    changed = MASK.copy()
    changed[0] = 3
    masks = {REFERENCE: {"000000.png": MASK, "000001.png": MASK}, "other": {"000000.png": changed}}
    found = figures(turns, masks, "other")
    assert found["agreement"] == pytest.approx(0.75)
    assert found["masks_compared"] == 1
