import pytest

from bench.harness.comparison import Laps


def _laps(*rounds: list[tuple[float, float]]) -> Laps:
    """Of frames with their total and their inference."""
    laps = Laps()
    for each in rounds:
        laps.add([{"total": total, "inferred": inferred, "bytes_up": 10.0} for total, inferred in each])
    return laps


def test_overhead_is_what_a_frame_took_without_its_own_inference() -> None:
    """Subtracting the median inference from the median total would mix frames."""
    figures = _laps([(110, 100), (230, 200), (20, 0)], [(105, 100)]).figures()
    assert figures["n"] == 4
    assert figures["overhead_ms"]["median"] == pytest.approx(15)  # Of 10, 30, 20 and 5.
    assert figures["by_round_ms"] == [20, 5]
    assert figures["parts"] == {"total": 107.5, "inferred": 100, "bytes_up": 10}


def test_a_ratio_is_of_all_rounds_and_of_each() -> None:
    """What drifts on a machine falls on both ways of a round; the spread of its rounds says how far to trust a ratio."""
    found = _laps([(110, 100)], [(120, 100)]).against(_laps([(120, 100)], [(200, 100)]))
    assert found["ratio"] == pytest.approx(15 / 60)
    assert found["by_round"] == pytest.approx([0.5, 0.2])
