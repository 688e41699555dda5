"""Retries: which unanswered frames are sent a second time, when, and to which worker.

A broker does not redeliver the frames that a dead worker held. A frame that was sent to a worker whose process has ended
is retried at once, or, if it ended in order, after a quarter of a second, in which its last replies arrive.

A shared subscription does not reveal which worker holds a frame. In all other cases, the policy therefore compares how long
a frame has been unanswered with recent reply times:

- A worker has failed that may hold the frame: it went offline without draining, restarted, or stopped echoing clock
  probes while other workers still echo them; or the connection broke. Frames sent before that are retried once they are
  unanswered for longer than the 99th percentile of reply times. If a deadline leaves less time, the retry waits for as long
  as the deadline permits.
- The worker of a frame is on trial: it has not answered yet, or not since it was silent. Its frame is retried after the larger of
  250 ms and 3 × the expected time of the worker, or earlier if a deadline demands it.
- No worker is known to have failed. A frame is retried if it is unanswered for longer than 250 ms and 3 × the 95th
  percentile of reply times, and either frames sent later were answered, or, with at least two workers, no frame was
  answered for just as long. When all workers are merely slow, neither holds: a retry would double the load. Each
  needless retry doubles the required silence, up to 16 times. With one worker, this finds the frames that the broker
  gives to its earlier process, whose connection has not ended yet.

A frame is sent at most twice, and only if a reply can still be in time. While half of the window has been sent again, no
frame is retried without a known failure. The dispatcher chooses the worker, otherwise it is the one with the last sign of life.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from edge.frame_record import Assignment, FrameRecord
from edge.ledger import VehicleFrameLog
from edge.sender import Sender
from edge.workers.worker_directory import Failures, WorkerView, WorkerWatch
from edge.workers.worker_stats import ReplyTimes, WorkerStats
from shared import clock
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
        """`after_ms`: silence that triggers a retry; None: derived from recent reply times and from other frames."""
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
            elif silence_ns is not None and free > 0 and self._may_be_lost(sent_ns, silence_ns, workers, now_ns):
                due_ns = sent_ns + silence_ns
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

    def _may_be_lost(self, sent_ns: int, silence_ns: int, workers: int, now_ns: int) -> bool:
        """Returns whether a frame that stays silent is probably lost rather than slow."""
        has_others = workers >= _MIN_WORKERS
        if has_others and (now_ns < sent_ns + silence_ns or self._after_ns is not None):
            return True
        if self._stats.replies_to_later_frames(sent_ns) >= _MIN_LATER_REPLIES:
            return True  # Also with one worker: the group may still contain a dead process.
        return has_others and now_ns - self._stats.latest_reply_ns() > silence_ns


def _last_failure_ns(record: FrameRecord, failures: Failures, now_ns: int) -> int:
    """Returns when a worker that may hold a frame was last known to have failed; `now_ns` for one that hangs."""
    if not record.worker:
        return now_ns if failures.unresponsive else failures.latest_ns
    return now_ns if record.worker in failures.unresponsive else failures.connection_ns


def _end_ns(record: FrameRecord) -> int:
    """Returns the time, in ns, until which a reply is useful."""
    return min(record.lost_after_ns, record.deadline.at_ns)


_CHECK_INTERVAL_S = 0.1
_SHORTEST_WAIT_S = 0.001


@dataclass(frozen=True, slots=True)
class Retrier:
    """Sends unanswered frames a second time."""

    sender: Sender  # Its dispatcher chooses the worker; without one, the worker with the last sign of life.
    policy: RetryPolicy
    watch: WorkerWatch
    frame_log: VehicleFrameLog = field(default_factory=VehicleFrameLog)

    def run(self, stop: threading.Event) -> None:
        """Checks the frames in flight until stopped; the body of a thread."""
        workers = self.sender.transport.workers
        last_failure_ns = workers.last_failure_ns()
        while not stop.is_set():
            wait_s = self.retry_due()
            last_failure_ns = workers.last_failure_ns(after_ns=last_failure_ns, timeout_s=wait_s)

    def retry_due(self) -> float:
        """Sends the retries that are due; returns the seconds to wait until the next check."""
        directory, records = self.sender.transport.workers, self.sender.ledger.in_flight()
        if not records:
            return _CHECK_INTERVAL_S
        now_ns, failures = clock.now_ns(), directory.failures()
        workers = self.watch.online(now_ns)
        on_trial = frozenset(worker.name for worker in workers if worker.known is not None and worker.known.is_on_trial)
        unresponsive = frozenset(worker.name for worker in workers if worker.is_unresponsive)
        # If no worker responds, the cause may be the connection or this process.
        if len(unresponsive) == len(workers):
            unresponsive = frozenset()
        for name in unresponsive:
            self.frame_log.unresponsive(name)
        workers = [worker for worker in workers if worker.name not in unresponsive]
        failures = replace(failures, unresponsive=unresponsive, on_trial=on_trial)
        retries = self.policy.plan(records, len(workers), failures, now_ns)
        for retry in retries:
            if retry.due_ns <= now_ns:
                self._send(retry.record, workers)
        waits_s = [(retry.due_ns - now_ns) / 1e9 for retry in retries if retry.due_ns > now_ns]
        return max(_SHORTEST_WAIT_S, min([_CHECK_INTERVAL_S, *waits_s]))

    def _send(self, record: FrameRecord, workers: Sequence[WorkerView]) -> None:
        message = record.message
        if message is None:
            return
        assignment = self.sender.assign(excluded=(record.worker,))
        if assignment.worker is None:  # The broker could give it to the worker that has it.
            others = [worker for worker in workers if worker.name != record.worker]
            assignment = Assignment(assignment.dispatch, _most_alive(others or workers, record))
        sent_ns = clock.now_ns()
        if not self.sender.ledger.open_retry(record, sent_ns, assignment):
            return
        self.frame_log.sent_again(record.id, str(assignment.worker), sent_ns - record.times[Stage.SENT])
        message = structs.replace(message, attempt=record.row.attempts, stamps=record.stamps_of(2))
        # There is no third attempt: if this worker has failed as well, the frame times out.
        self.sender.deliver(message, self.sender.transport.pack(message), assignment, lambda _: None)


def _most_alive(workers: Sequence[WorkerView], record: FrameRecord) -> str:
    """Returns the worker that last replied since the frame was sent, else the one with the last sign of life."""
    sent_ns = record.times[Stage.SENT]

    def last_sign(worker: WorkerView) -> tuple[int, int]:
        return (worker.reply_ns if worker.reply_ns > sent_ns else 0, worker.last_sign_ns)

    return max(workers, key=last_sign).name
