"""The frames of the last minute."""

import pytest

from shared import clock
from shared.messages.node_metrics import MAX_OUTCOMES
from shared.recent_frames import SPAN_S, RecentFrames

SECOND_NS = 10**9


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, which a test sets."""
    now = [10**18]
    monkeypatch.setattr(clock, "now_ns", lambda: now[0])
    return now


def test_frames_are_forgotten_after_a_minute(at: list[int]) -> None:
    """And the seconds that the counts are of grow to a minute."""
    recent = RecentFrames()
    for second in range(90):
        at[0] = 10**18 + second * SECOND_NS
        recent.add("answered" if second < 60 else "dropped", {}, "" if second < 60 else "window: 3 were due")
    summary = recent.summary()
    assert summary.frames == {"answered": 30, "dropped": 30}
    assert (summary.seconds, summary.reason) == (SPAN_S, "window")
    at[0] += 61 * SECOND_NS
    assert recent.summary().frames == {}


def test_quantiles_are_those_of_all_frames(at: list[int]) -> None:
    """Of a busy second a random part is kept; a p95 needs twenty frames."""
    recent = RecentFrames()
    for index in range(19):
        recent.add("answered", {"total": (index + 1) * 1_000_000})
    found = recent.summary().times["total"]
    assert (found.p50_ms, found.p95_ms) == (10.0, None)
    for second in range(60):
        at[0] = 10**18 + second * SECOND_NS
        for index in range(1000):
            recent.add("answered", {"total": index * 1_000_000})
    found = recent.summary().times["total"]
    assert found.p50_ms == pytest.approx(500, abs=50)
    assert found.p95_ms == pytest.approx(950, abs=25)
    assert recent.summary().frames["answered"] == 60_000 + 19


def test_reasons_are_bounded(at: list[int]) -> None:
    """A worker makes them up, and each may differ."""
    recent = RecentFrames()
    for index in range(1000):
        recent.add("rejected", {}, f"no {index}")
    recent.add("rejected", {}, "no 3: once more")
    assert recent.summary().frames == {"rejected": 1001}
    assert recent.summary().reason == "no 3"
    assert at
    assert MAX_OUTCOMES < 1000
