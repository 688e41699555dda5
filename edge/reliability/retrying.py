"""Retries: sends unanswered frames a second time, to the worker that most recently showed a sign of life.

`edge.reliability.retry_policy` decides which frames are retried, and when.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from edge.frame_log import VehicleFrameLog
from edge.reliability.clock_sync import probe_interval_ns
from edge.reliability.frame_record import FrameRecord
from edge.reliability.ledger import Ledger
from edge.reliability.retry_policy import RetryPolicy
from edge.reliability.worker_clocks import WorkerClocks
from edge.reliability.worker_stats import WorkerStats
from edge.transports.transport import Transport
from shared import clock
from shared.stages import Stage

_CHECK_INTERVAL_S = 0.1
_SHORTEST_WAIT_S = 0.001
_MISSED_PROBES = 3  # Number of probe intervals without an echo after which a worker counts as unresponsive.

_Workers = Sequence[tuple[str, str]]  # Name and process session of each worker.


@dataclass(frozen=True, slots=True)
class Retrier:
    """Sends unanswered frames a second time."""

    transport: Transport
    ledger: Ledger
    policy: RetryPolicy
    stats: WorkerStats
    clocks: WorkerClocks
    frame_log: VehicleFrameLog = field(default_factory=VehicleFrameLog)

    def run(self, stop: threading.Event) -> None:
        """Checks the frames in flight until stopped; the body of a thread."""
        last_failure_ns = self.transport.workers.last_failure_ns()
        while not stop.is_set():
            wait_s = self.retry_due(last_failure_ns)
            last_failure_ns = self.transport.workers.last_failure_ns(after_ns=last_failure_ns, timeout_s=wait_s)

    def retry_due(self, last_failure_ns: int) -> float:
        """Sends the retries that are due; returns the seconds to wait until the next check."""
        records = self.ledger.in_flight()
        if not records:
            return _CHECK_INTERVAL_S
        workers = self.transport.workers.online()
        now_ns = clock.now_ns()
        responsive = [worker for worker in workers if not self._is_unresponsive(worker, len(workers), now_ns)]
        # If no worker responds, the cause may be the connection or this process.
        if 0 < len(responsive) < len(workers):
            for name, _ in set(workers) - set(responsive):
                self.frame_log.unresponsive(name)
            workers, last_failure_ns = responsive, now_ns
        retries = self.policy.plan(records, len(workers), last_failure_ns, now_ns)
        for retry in retries:
            if retry.due_ns <= now_ns:
                self._send(retry.record, self._most_alive(workers, retry.record))
        later_ns = [retry.due_ns for retry in retries if retry.due_ns > now_ns]
        return (
            min(_CHECK_INTERVAL_S, max(_SHORTEST_WAIT_S, (min(later_ns) - now_ns) / 1e9))
            if later_ns
            else _CHECK_INTERVAL_S
        )

    def _send(self, record: FrameRecord, worker: str) -> None:
        message = record.message
        if message is None:
            return
        sent_ns = clock.now_ns()
        if not self.ledger.open_retry(record, sent_ns):
            return
        self.frame_log.sent_again(record.id, worker, sent_ns - record.times[Stage.SENT])
        message = replace(message, attempt=record.attempts, stamps=record.stamps_of(2))
        # There is no third attempt: if this worker has failed as well, the frame times out.
        self.transport.send(message, self.transport.pack(message), lambda _: None, worker=worker)

    def _most_alive(self, workers: _Workers, record: FrameRecord) -> str:
        """Returns the worker that last replied since the frame was sent, else the one with the last sign of life."""
        sent_ns = record.times[Stage.SENT]

        def last_sign(worker: tuple[str, str]) -> tuple[int, int]:
            reply_ns = self.stats.last_reply_ns(worker[0])
            return (reply_ns if reply_ns > sent_ns else 0, max(reply_ns, self._last_echo_ns(worker)))

        return max(workers, key=last_sign)[0]

    def _is_unresponsive(self, worker: tuple[str, str], workers: int, now_ns: int) -> bool:
        echo_ns = self._last_echo_ns(worker)
        return 0 < echo_ns < now_ns - _MISSED_PROBES * probe_interval_ns(workers)

    def _last_echo_ns(self, worker: tuple[str, str]) -> int:
        return self.clocks.last_echo_ns(f"cloud/{worker[0]}/{worker[1]}")
