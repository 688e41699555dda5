"""Decisions about retries."""

import pytest

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.pipeline import prepare
from edge.retrying import RetryPolicy
from edge.workers.worker_directory import Failures, WorkerEnd
from edge.workers.worker_stats import WorkerStats
from shared.clock import Deadline
from shared.stages import Stage
from tests.edge.samples import CARD, make_frame, make_record, mark_sent

MS = 1_000_000


def sent(at_ms: int, deadline_ms: int | None = None) -> FrameRecord:
    """Makes a frame in flight that was sent at a time in milliseconds."""
    record = mark_sent(make_record(due_ns=at_ms * MS - 5000))
    record.message = prepare(make_frame(), record, CARD, EdgeConfig(codec="raw"))
    record.times[Stage.SENT] = at_ms * MS
    record.lost_after_ns = 1 << 60
    record.deadline = Deadline.after_ms(deadline_ms, 0)
    return record


def _stats(reply_ms: int = 100, replies: int = 20, returned_ms: int = 0) -> WorkerStats:
    stats = WorkerStats()
    for _ in range(replies):
        stats.add_reply("w", (returned_ms - reply_ms) * MS, returned_ms * MS)
    return stats


def _due(
    policy: RetryPolicy, records: list[FrameRecord], now_ms: int, *, workers: int = 2, failed_ms: int = 0
) -> list[int]:
    """Returns when each planned retry is due, in milliseconds."""
    return [round(retry.due_ns / MS) for retry in policy.plan(records, workers, Failures(failed_ms * MS), now_ms * MS)]


def test_after_a_failure_frames_silent_for_longer_than_usual_are_retried() -> None:
    """The worker that held a frame is unknown; frames that a live worker may still answer wait."""
    policy = RetryPolicy(_stats(reply_ms=100), window=4)
    frames = [sent(1000), sent(1180), sent(1250)]
    assert _due(policy, frames, now_ms=1200, workers=1, failed_ms=1200) == [1200, 1280]
    assert _due(policy, frames, now_ms=1200, workers=0, failed_ms=1200) == []


def test_a_deadline_brings_the_retry_forward() -> None:
    """A few very slow replies must not delay retries until it is too late."""
    stats = _stats(reply_ms=100, replies=97)
    for _ in range(3):
        stats.add_reply("w", 0, 900 * MS)
    policy = RetryPolicy(stats, window=4)
    assert stats.times.p99_ns == 900 * MS
    assert _due(policy, [sent(1000)], now_ms=1100, failed_ms=1050) == [1300]  # The limit without a known failure.
    assert _due(policy, [sent(1000, deadline_ms=1350)], now_ms=1100, failed_ms=1050) == [1250]


def test_before_the_first_reply_only_a_failure_causes_a_retry() -> None:
    """Without reply times, a silent worker may just be slow."""
    policy = RetryPolicy(WorkerStats(), window=4)
    assert _due(policy, [sent(1000)], now_ms=9000, failed_ms=1100) == [1100]
    assert _due(policy, [sent(1000)], now_ms=9000) == []


@pytest.mark.parametrize(("reply_ms", "silence_ms"), [(20, 250), (200, 600)])
def test_the_silence_limit_depends_on_reply_times(reply_ms: int, silence_ms: int) -> None:
    """It is three times the usual reply time and at least 250 ms; a fixed limit replaces it."""
    policy = RetryPolicy(_stats(reply_ms), window=4)
    assert _due(policy, [sent(1000)], now_ms=1100) == [1000 + silence_ms]
    assert _due(policy, [sent(1000)], now_ms=1100, workers=1) == []
    assert _due(RetryPolicy(WorkerStats(), window=4, after_ms=70), [sent(1000)], now_ms=1100) == [1070]


def test_slow_workers_cause_no_retries() -> None:
    """Under overload every frame is late: retries would double the load."""
    stats = _stats(reply_ms=100, replies=96)
    policy = RetryPolicy(stats, window=4)
    for sent_ms in (980, 990, 1010):
        stats.add_reply("w", sent_ms * MS, 1390 * MS)
        assert _due(policy, [sent(1000)], now_ms=1400) == []  # One reply to a later frame may be chance.
    stats.add_reply("w", 1020 * MS, 1395 * MS)
    assert _due(policy, [sent(1000)], now_ms=1400) == [1300]


def test_a_frame_that_later_ones_have_overtaken_is_retried_to_the_only_worker() -> None:
    """The broker gives every other frame to a worker that died behind a dead link, after it was started again, too."""
    stats = _stats(reply_ms=100)
    policy = RetryPolicy(stats, window=4)
    stats.add_reply("w", 1010 * MS, 1110 * MS)
    assert _due(policy, [sent(1000)], now_ms=1400, workers=1) == []
    stats.add_reply("w", 1020 * MS, 1120 * MS)
    assert _due(policy, [sent(1000)], now_ms=1200, workers=1) == [1300]
    assert _due(policy, [sent(1015)], now_ms=1400, workers=1) == []


def test_a_silent_frame_is_retried_if_no_frame_is_answered() -> None:
    """With a single frame in flight, there are no replies to later frames."""
    policy = RetryPolicy(_stats(reply_ms=100, returned_ms=1000), window=1)
    assert _due(policy, [sent(1000)], now_ms=1301) == [1300]


def test_without_a_known_failure_at_most_half_the_window_is_retried() -> None:
    """This limits the cost of a wrong decision."""
    policy = RetryPolicy(_stats(reply_ms=100), window=4)
    frames = [sent(1000), sent(1001), sent(1002), sent(1003)]
    assert len(_due(policy, frames, now_ms=5000)) == 2
    frames[0].resent_ns = 4000 * MS
    assert _due(policy, frames, now_ms=5000) == [1301]
    assert len(_due(policy, frames, now_ms=5000, failed_ms=2000)) == 3


def test_frames_past_their_deadline_do_not_use_up_the_limit() -> None:
    """They stay in flight for a grace period but cannot be saved; others can."""
    policy = RetryPolicy(_stats(reply_ms=100), window=4)
    late = [sent(1000, deadline_ms=1200), sent(1001, deadline_ms=1201)]
    assert _due(policy, [*late, sent(1010), sent(1011), sent(1012)], now_ms=1500) == [1310, 1311]


def test_a_needless_retry_delays_the_next_one() -> None:
    """Its worker was slow, not dead."""
    stats = _stats(reply_ms=100)
    stats.add_retry(was_useful=False)
    assert _due(RetryPolicy(stats, window=4), [sent(1000)], now_ms=1100) == [1600]


def test_a_retry_that_cannot_be_in_time_is_not_sent() -> None:
    """Its result would be useless, and its inference would delay other frames."""
    policy = RetryPolicy(_stats(reply_ms=100), window=4)
    assert _due(policy, [sent(1000, deadline_ms=1400)], now_ms=1100) == [1300]
    assert _due(policy, [sent(1000, deadline_ms=1399)], now_ms=1100) == []


def test_no_frame_is_sent_three_times() -> None:
    """A frame without a stored message is not sent again either."""
    retried, without_message = sent(1000), sent(1000)
    retried.resent_ns = 1300 * MS
    without_message.message = None
    assert _due(RetryPolicy(_stats(), window=8), [retried, without_message], now_ms=5000, failed_ms=4000) == []


def _due_of(worker: str, failures: Failures, sent_ms: int = 1000) -> list[int]:
    """Returns when the retry of a frame that was sent to `worker` is due, in milliseconds; 100 ms later."""
    record = sent(sent_ms)
    record.worker = worker
    policy = RetryPolicy(_stats(reply_ms=400), window=4)
    return [round(retry.due_ns / MS) for retry in policy.plan([record], 2, failures, (sent_ms + 100) * MS)]


def test_the_end_of_a_worker_is_the_end_of_its_frames() -> None:
    """The vehicle knows that it had them, so they need not be silent for longer than usual."""
    failures = Failures(latest_ns=1050 * MS, ended={"a": WorkerEnd(1050 * MS, 1050 * MS)})
    assert _due_of("a", failures) == [1050]
    assert _due_of("a", failures, sent_ms=1060) == [2260]  # It was sent to the next process of that name.
    assert _due_of("b", failures) == [2200]  # The usual silence without a failure.
    assert _due_of("", failures) == [1400]  # Any worker of the group may have it.


def test_a_drained_worker_has_time_to_answer() -> None:
    """Its last replies may still be waiting to be read."""
    assert _due_of("a", Failures(ended={"a": WorkerEnd(1050 * MS, 1300 * MS)})) == [1300]


def test_a_worker_that_hangs_explains_the_silence_of_its_frames_only() -> None:
    """Frames of the others are only slow."""
    failures = Failures(unresponsive=frozenset(("a",)))
    assert [_due_of(worker, failures) for worker in ("a", "b", "")] == [[1400], [2200], [1400]]


def test_a_lost_connection_explains_the_silence_of_every_frame() -> None:
    """The broker may have lost frames and replies."""
    failures = Failures(latest_ns=1050 * MS, connection_ns=1050 * MS)
    assert [_due_of(worker, failures) for worker in ("a", "")] == [[1400], [1400]]


@pytest.mark.parametrize(("expected_ms", "silence_ms"), [(1, 250), (1000, 3000)])
def test_a_worker_on_trial_has_three_times_its_own_estimate(expected_ms: int, silence_ms: int) -> None:
    """Of the workers at the start, some may be stuck; an honest one of a slow model reports that it is slow."""
    policy, failures = RetryPolicy(WorkerStats(), window=4), Failures(on_trial=frozenset(("new",)))
    record = sent(1000)
    record.worker, record.expected_ns = "new", expected_ms * MS
    (retry,) = policy.plan([record], 2, failures, 1001 * MS)
    assert retry.due_ns == (1000 + silence_ms) * MS
    assert policy.plan([record], 1, failures, 1001 * MS) == []  # No other worker could answer.


def test_a_deadline_ends_a_trial_earlier() -> None:
    """Another worker needs the rest of the time."""
    record = sent(1000, deadline_ms=1200)
    record.worker, record.expected_ns = "new", 500 * MS
    plan = RetryPolicy(_stats(reply_ms=60), window=4).plan
    assert [retry.due_ns for retry in plan([record], 2, Failures(on_trial=frozenset(("new",))), 1001 * MS)] == [
        1140 * MS
    ]
