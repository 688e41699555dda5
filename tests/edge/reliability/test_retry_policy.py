from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.pipeline import Preparation, prepare
from edge.reliability.ledger import FrameRecord, Ledger
from edge.reliability.retry_policy import RetryPolicy
from edge.reliability.worker_stats import WorkerStats
from shared.messages.model_card import ModelCard
from shared.runlog.latency_log import LogWriter
from shared.stages import Stage

Make = Callable[..., Any]
MS = 1_000_000


@pytest.fixture
def sent(frame: Make, send: Make, card: ModelCard, tmp_path: Path) -> Iterator[Callable[..., FrameRecord]]:
    """Makes frames in flight, sent at a moment, in milliseconds."""
    with LogWriter(tmp_path / "made") as log:
        ledger = Ledger(log, vehicle="car", session="s1", model="tiny")

        def make(at_ms: int, deadline_ms: int | None = None) -> FrameRecord:
            journey: FrameRecord = send(ledger.begin(frame(), at_ms * MS - 5000))
            journey.message = prepare(frame(), journey, Preparation(card, codec="raw"))
            journey.times[Stage.SENT] = at_ms * MS
            journey.given_up_ns = 1 << 60
            journey.deadline_ns = None if deadline_ms is None else deadline_ms * MS
            return journey

        yield make


def _pulse(took_ms: int = 100, answers: int = 20, returned_ms: int = 0) -> WorkerStats:
    pulse = WorkerStats()
    for _ in range(answers):
        pulse.answered("w", (returned_ms - took_ms) * MS, returned_ms * MS)
    return pulse


def _due(
    suspicions: RetryPolicy, journeys: list[FrameRecord], now_ms: int, *, workers: int = 2, gone_ms: int = 0
) -> list[int]:
    """When each suspected frame is due, in milliseconds."""
    found = suspicions.of(journeys, workers, gone_ms * MS, now_ms * MS)
    return [round(suspicion.due_ns / MS) for suspicion in found]


def test_who_is_gone_takes_with_him_what_is_silent_for_longer_than_usual(sent: Make) -> None:
    """Which worker held a frame is not known: those that the others would have answered by now are sent again."""
    suspicions = RetryPolicy(_pulse(took_ms=100), window=4)
    frames = [sent(1000), sent(1180), sent(1250)]
    assert _due(suspicions, frames, now_ms=1200, workers=1, gone_ms=1200) == [1200, 1280]
    assert _due(suspicions, frames, now_ms=1200, workers=0, gone_ms=1200) == []


def test_where_time_is_short_it_is_just_in_time(sent: Make) -> None:
    """One frame of a hundred takes very long: waiting for as long would leave no time to send any other again."""
    pulse = _pulse(took_ms=100, answers=97)
    for _ in range(3):
        pulse.answered("w", 0, 900 * MS)
    suspicions = RetryPolicy(pulse, window=4)
    assert pulse.times.p99_ns == 900 * MS
    assert _due(suspicions, [sent(1000)], now_ms=1100, gone_ms=1050) == [1300]  # Never later than a silence of old.
    assert _due(suspicions, [sent(1000, deadline_ms=1350)], now_ms=1100, gone_ms=1050) == [1250]


def test_before_any_answer_a_departure_alone_tells(sent: Make) -> None:
    """The first worker of a run may die before it has answered once; slow it may be in any case."""
    suspicions = RetryPolicy(WorkerStats(), window=4)
    assert _due(suspicions, [sent(1000)], now_ms=9000, gone_ms=1100) == [1100]
    assert _due(suspicions, [sent(1000)], now_ms=9000) == []


@pytest.mark.parametrize(("took_ms", "enough_ms"), [(20, 250), (200, 600)])
def test_a_silence_is_long_by_what_answers_take(sent: Make, took_ms: int, enough_ms: int) -> None:
    """Three times what nearly all of them take, and never so short that a hiccup would do."""
    suspicions = RetryPolicy(_pulse(took_ms), window=4)
    assert _due(suspicions, [sent(1000)], now_ms=1100) == [1000 + enough_ms]
    assert _due(suspicions, [sent(1000)], now_ms=1100, workers=1) == []
    assert _due(RetryPolicy(WorkerStats(), window=4, after_ms=70), [sent(1000)], now_ms=1100) == [1070]


def test_where_all_are_merely_slow_nothing_is_sent_again(sent: Make) -> None:
    """Overload makes every frame silent for long: sending each again would double it."""
    pulse = _pulse(took_ms=100, answers=96)
    suspicions = RetryPolicy(pulse, window=4)
    for sent_ms in (980, 990, 1010):
        pulse.answered("w", sent_ms * MS, 1390 * MS)
        assert _due(suspicions, [sent(1000)], now_ms=1400) == []  # One frame that overtook may be chance.
    pulse.answered("w", 1020 * MS, 1395 * MS)
    assert _due(suspicions, [sent(1000)], now_ms=1400) == [1300]


def test_where_nobody_answers_at_all_the_silence_is_no_slowness(sent: Make) -> None:
    """With a single frame under way, none can overtake."""
    suspicions = RetryPolicy(_pulse(took_ms=100, returned_ms=1000), window=1)
    assert _due(suspicions, [sent(1000)], now_ms=1301) == [1300]


def test_on_suspicion_alone_half_the_window_is_the_most(sent: Make) -> None:
    """Should it be wrong, it costs at most so much."""
    suspicions = RetryPolicy(_pulse(took_ms=100), window=4)
    frames = [sent(1000), sent(1001), sent(1002), sent(1003)]
    assert len(_due(suspicions, frames, now_ms=5000)) == 2
    frames[0].resent_ns = 4000 * MS
    assert _due(suspicions, frames, now_ms=5000) == [1301]
    assert len(_due(suspicions, frames, now_ms=5000, gone_ms=2000)) == 3


def test_frames_whose_time_is_up_take_no_place_of_those_that_can_be_saved(sent: Make) -> None:
    """They stay in flight until their grace has passed, and are not sent again: so are the others not meanwhile."""
    suspicions = RetryPolicy(_pulse(took_ms=100), window=4)
    late = [sent(1000, deadline_ms=1200), sent(1001, deadline_ms=1201)]
    assert _due(suspicions, [*late, sent(1010), sent(1011), sent(1012)], now_ms=1500) == [1310, 1311]


def test_a_retry_in_vain_makes_the_next_one_wait(sent: Make) -> None:
    """Its worker was slow and not dead, and so is likely the next one's."""
    pulse = _pulse(took_ms=100)
    pulse.retried(in_vain=True)
    assert _due(RetryPolicy(pulse, window=4), [sent(1000)], now_ms=1100) == [1600]


def test_nothing_is_sent_again_that_could_not_be_answered_in_time(sent: Make) -> None:
    """Its mask would be of no use, and its inference would cost another frame's."""
    suspicions = RetryPolicy(_pulse(took_ms=100), window=4)
    assert _due(suspicions, [sent(1000, deadline_ms=1400)], now_ms=1100) == [1300]
    assert _due(suspicions, [sent(1000, deadline_ms=1399)], now_ms=1100) == []


def test_no_frame_is_sent_three_times(sent: Make) -> None:
    """Nor one whose pixels were not kept."""
    journey, forgotten = sent(1000), sent(1000)
    journey.resent_ns = 1300 * MS
    forgotten.message = None
    assert _due(RetryPolicy(_pulse(), window=8), [journey, forgotten], now_ms=5000, gone_ms=4000) == []
