import pytest

from cloud.serving.latency_estimator import BatchLatencyEstimator, Estimate
from shared import clock


def test_nine_in_ten_were_no_slower() -> None:
    """One slow run in twenty must not have frames refused that would end in time."""
    estimate = Estimate()
    assert estimate.ns == 0
    for took_ns in (*range(1, 20), 10_000):
        estimate.add(took_ns)
    assert estimate.ns == 18


def test_what_is_old_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that are refused by an estimate bring no new one: it must not refuse for ever."""
    estimate = Estimate()
    estimate.add(500)
    later_ns = clock.now_ns() + 11 * 10**9
    monkeypatch.setattr(clock, "now_ns", lambda: later_ns)
    assert estimate.ns == 0
    estimate.add(7)
    assert estimate.ns == 7


def test_a_batch_takes_as_long_as_those_of_its_size_and_no_longer_than_others_tell() -> None:
    """A frame alone must not be refused because eight take long, nor eight be begun because one is quick."""
    estimate = BatchLatencyEstimator(8)
    assert estimate.ns(8) == 0
    estimate.add(2, 100)
    assert [estimate.ns(size) for size in (1, 2, 4, 8)] == [100, 100, 200, 400]
    estimate.add(4, 150)
    assert [estimate.ns(size) for size in (1, 2, 3, 4, 8)] == [100, 100, 150, 150, 300]
