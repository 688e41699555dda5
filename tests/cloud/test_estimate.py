import pytest

from cloud.estimate import Estimate
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
