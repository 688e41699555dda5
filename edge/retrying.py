"""Retries: sends unanswered frames a second time, to another worker.

`edge.workers.retry_policy` decides which frames are retried, and when.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from edge.frame_record import Assignment, FrameRecord
from edge.ledger import VehicleFrameLog
from edge.sender import Sender
from edge.workers.retry_policy import RetryPolicy
from edge.workers.worker_clocks import WorkerClocks, is_unresponsive
from edge.workers.worker_stats import WorkerStats
from shared import clock
from shared.stages import Stage

_CHECK_INTERVAL_S = 0.1
_SHORTEST_WAIT_S = 0.001

_Workers = Sequence[tuple[str, str]]  # Name and process session of each worker.


@dataclass(frozen=True, slots=True)
class Retrier:
    """Sends unanswered frames a second time."""

    sender: Sender  # Its dispatcher chooses the worker; without one, the worker with the last sign of life.
    policy: RetryPolicy
    stats: WorkerStats
    clocks: WorkerClocks
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
        workers, failures = directory.online(), directory.failures()
        now_ns = clock.now_ns()
        responsive = [
            worker for worker in workers if not is_unresponsive(self._last_echo_ns(worker), len(workers), now_ns)
        ]
        # If no worker responds, the cause may be the connection or this process.
        if 0 < len(responsive) < len(workers):
            unresponsive = frozenset(name for name, _ in set(workers) - set(responsive))
            for name in unresponsive:
                self.frame_log.unresponsive(name)
            workers, failures = responsive, replace(failures, unresponsive=unresponsive)
        if directory.loads is not None:
            loads = directory.loads.known()
            failures = replace(failures, on_trial=frozenset(name for name in loads if loads[name].is_on_trial))
        retries = self.policy.plan(records, len(workers), failures, now_ns)
        for retry in retries:
            if retry.due_ns <= now_ns:
                self._send(retry.record, workers)
        waits_s = [(retry.due_ns - now_ns) / 1e9 for retry in retries if retry.due_ns > now_ns]
        return max(_SHORTEST_WAIT_S, min([_CHECK_INTERVAL_S, *waits_s]))

    def _send(self, record: FrameRecord, workers: _Workers) -> None:
        message = record.message
        if message is None:
            return
        assignment = self.sender.assign(excluded=(record.worker,))
        if assignment.worker is None:  # The broker could give it to the worker that has it.
            others = [worker for worker in workers if worker[0] != record.worker]
            assignment = Assignment(assignment.dispatch, self._most_alive(others or workers, record))
        sent_ns = clock.now_ns()
        if not self.sender.ledger.open_retry(record, sent_ns, assignment):
            return
        self.frame_log.sent_again(record.id, str(assignment.worker), sent_ns - record.times[Stage.SENT])
        message = structs.replace(message, attempt=record.attempts, stamps=record.stamps_of(2))
        # There is no third attempt: if this worker has failed as well, the frame times out.
        self.sender.deliver(message, self.sender.transport.pack(message), assignment, lambda _: None)

    def _most_alive(self, workers: _Workers, record: FrameRecord) -> str:
        """Returns the worker that last replied since the frame was sent, else the one with the last sign of life."""
        sent_ns = record.times[Stage.SENT]

        def last_sign(worker: tuple[str, str]) -> tuple[int, int]:
            reply_ns = self.stats.last_reply_ns(worker[0])
            return (reply_ns if reply_ns > sent_ns else 0, max(reply_ns, self._last_echo_ns(worker)))

        return max(workers, key=last_sign)[0]

    def _last_echo_ns(self, worker: tuple[str, str]) -> int:
        return self.clocks.last_echo(f"cloud/{worker[0]}/{worker[1]}").at_ns
