"""The retry policy: which unanswered frames are sent a second time, and when.

A broker does not redeliver the frames that a dead worker held. A frame that was sent to a worker whose process has ended
is retried at once.

A shared subscription does not reveal which worker holds a frame. In all other cases, the policy therefore compares how long
a frame has been unanswered with recent reply times:

- A worker has failed that may hold the frame: it went offline without draining, restarted, or stopped echoing clock
  probes while other workers still echo them; or the connection broke. Frames sent before that are retried once they are
  unanswered for longer than the 99th percentile of reply times. If a deadline leaves less time, the retry waits for as long
  as the deadline permits.
- The worker of a frame is on trial: it has not answered yet, or not since it was silent. Its frame is retried after 3 × the
  time that the worker leads to expect and 250 ms, or earlier if a deadline demands it.
- No worker is known to have failed. A frame is retried if at least two workers serve the model, it is unanswered for
  longer than 3 × the 95th percentile of reply times and 250 ms, and either frames sent later were answered, or no frame
  was answered for just as long. When all workers are merely slow, neither holds: a retry would double the load. Each
  needless retry doubles the required silence, up to 16 times.

A frame is sent at most twice, and only if a reply can still be in time. Retries without a known failure use at most half
of the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from edge.frame_record import FrameRecord
from edge.workers.worker_directory import Failures
from edge.workers.worker_stats import ReplyTimes, WorkerStats
from shared.stages import Stage

_MIN_SILENCE_NS = 250_000_000
_SILENCE_FACTOR = 3  # Times the 95th percentile of reply times.
_MIN_REPLIES = 4  # Replies needed for an estimate of reply times.
_MIN_LATER_REPLIES = 2  # A single reply to a later frame may be chance.
_MIN_WORKERS = 2  # A retry needs a worker other than the silent one.


@dataclass(frozen=True, slots=True)
class PlannedRetry:
    """A frame to send again at `due_ns`, unless its reply comes first."""

    record: FrameRecord
    due_ns: int


class RetryPolicy:
    """Plans the retries of frames in flight. Has no connection and no thread."""

    def __init__(self, stats: WorkerStats, *, window: int, after_ms: float | None = None) -> None:
        """`after_ms`: silence that triggers a retry; None: derived from recent reply times."""
        self._stats = stats
        self._max_unexplained = max(1, window // 2)
        self._after_ns = None if after_ms is None else round(after_ms * 1e6)

    def plan(self, records: Sequence[FrameRecord], workers: int, failures: Failures, now_ns: int) -> list[PlannedRetry]:
        """Returns the retries of frames in flight that are due or may become due.

        `workers`: number of workers that serve the model and respond.
        """
        times = self._stats.times
        silence_ns = self._silence_ns(times)
        free = self._max_unexplained - sum(1 for record in records if record.resent_ns)
        retries = []
        for record in records:
            if record.resent_ns or record.message is None or not workers:
                continue
            sent_ns = record.times[Stage.SENT]
            due_ns = None
            last_failure_ns = _last_failure_ns(record, failures, now_ns)
            end = failures.ended.get(record.worker)
            has_ended = end is not None and end.at_ns > sent_ns
            is_on_trial = record.worker in failures.on_trial and workers >= _MIN_WORKERS
            is_explained = has_ended or is_on_trial or last_failure_ns > sent_ns
            if end is not None and has_ended:
                due_ns = end.lost_ns
            elif last_failure_ns > sent_ns:
                usual_ns = times.p99_ns if silence_ns is None else min(times.p99_ns, silence_ns)
                latest_ns = _end_ns(record) - times.p95_ns  # Leaves just enough time for a reply.
                due_ns = max(last_failure_ns, min(sent_ns + usual_ns, latest_ns))
            elif is_on_trial:
                trial_ns = max(_MIN_SILENCE_NS, _SILENCE_FACTOR * record.expected_ns)
                due_ns = min(sent_ns + trial_ns, _end_ns(record) - times.p95_ns)
            elif silence_ns is not None and workers >= _MIN_WORKERS and free > 0:
                silent_until_ns = sent_ns + silence_ns
                if now_ns < silent_until_ns or self._is_overdue(sent_ns, silence_ns, now_ns):
                    due_ns = silent_until_ns
            if due_ns is not None and _end_ns(record) - max(now_ns, due_ns) >= times.median_ns:
                retries.append(PlannedRetry(record, due_ns))
                free -= not is_explained and now_ns >= due_ns
        return retries

    def _silence_ns(self, times: ReplyTimes) -> int | None:
        """Returns the silence that triggers a retry without a known failure; None if there are too few replies."""
        if self._after_ns is not None:
            return self._after_ns * self._stats.silence_multiplier
        if times.count < _MIN_REPLIES:
            return None
        return max(_MIN_SILENCE_NS, _SILENCE_FACTOR * times.p95_ns) * self._stats.silence_multiplier

    def _is_overdue(self, sent_ns: int, silence_ns: int, now_ns: int) -> bool:
        """Returns whether a silent frame is probably lost rather than slow."""
        if self._after_ns is not None or self._stats.replies_to_later_frames(sent_ns) >= _MIN_LATER_REPLIES:
            return True
        return now_ns - self._stats.latest_reply_ns() > silence_ns


def _last_failure_ns(record: FrameRecord, failures: Failures, now_ns: int) -> int:
    """Returns when a worker that may hold a frame was last known to have failed; `now_ns` for one that hangs."""
    if not record.worker:
        return now_ns if failures.unresponsive else failures.latest_ns
    return now_ns if record.worker in failures.unresponsive else failures.connection_ns


def _end_ns(record: FrameRecord) -> int:
    """Returns the time until which a reply is useful."""
    return min(record.lost_after_ns, record.deadline.at_ns)
