import pytest

from cloud.serving.latency_estimator import BatchLatencyEstimator, LatencyEstimator
from shared import clock


def test_the_estimate_is_the_90_percent_quantile() -> None:
    """One slow run in twenty must not cause refusals."""
    estimate = LatencyEstimator()
    assert estimate.ns == 0
    for took_ns in (*range(1, 20), 10_000):
        estimate.add(took_ns)
    assert estimate.ns == 18


def test_the_median_is_typical() -> None:
    """The sum of several latencies is estimated by it; one slow run must not lengthen it."""
    estimate = LatencyEstimator()
    assert estimate.median_ns == 0
    for took_ns in (100, 101, 9_000, 99, 100):
        estimate.add(took_ns)
    assert estimate.median_ns == 100
    by_size = BatchLatencyEstimator(4)
    by_size.add(2, 100)
    assert [by_size.median_ns(size) for size in (1, 2, 4)] == [100, 100, 200]


def test_the_fastest_is_that_of_a_longer_window() -> None:
    """It must be below a deadline that a tenth of the frames meet, whatever the last twenty were."""
    estimate = BatchLatencyEstimator(1)
    for took_ns in (50, *[200] * 99):
        estimate.add(1, took_ns)
    assert (estimate.fastest_ns(1), estimate.median_ns(1)) == (50, 200)
    estimate.add(1, 300)
    assert estimate.fastest_ns(1) == 200


def test_old_measurements_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate that refuses all frames gets no new measurements."""
    estimate = LatencyEstimator()
    estimate.add(500)
    later_ns = clock.now_ns() + 11 * 10**9
    monkeypatch.setattr(clock, "now_ns", lambda: later_ns)
    assert estimate.ns == estimate.median_ns == 0
    estimate.add(7)
    assert estimate.ns == estimate.median_ns == 7


def test_the_estimate_depends_on_the_batch_size() -> None:
    """An unknown size is limited by the next smaller and the next larger known size."""
    estimate = BatchLatencyEstimator(8)
    assert estimate.ns(8) == 0
    estimate.add(2, 100)
    assert [estimate.ns(size) for size in (1, 2, 4, 8)] == [100, 100, 200, 400]
    estimate.add(4, 150)
    assert [estimate.ns(size) for size in (1, 2, 3, 4, 8)] == [100, 100, 150, 150, 300]
