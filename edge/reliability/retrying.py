"""Retrying: a frame that met silence is sent once more, to a worker that is known to answer.

`edge.reliability.retry_policy` says which frame and when. The worker is the one that answered last since the frame left, or else the
one that last gave any sign of life.
"""

import threading
from collections.abc import Sequence

from msgspec.structs import replace

from edge.frame_log import FrameLog
from edge.reliability.clock_sync import gap_ns
from edge.reliability.ledger import FrameRecord, Ledger
from edge.reliability.retry_policy import RetryPolicy
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_stats import WorkerStats
from edge.transports.transport import Transport
from shared import clock
from shared.stages import Stage

_LOOK_S = 0.1  # How often the frames in flight are looked at where nothing is due before.
_LEAST_S = 0.001
_MISSED = 3  # Probes without an echo, after which a worker stands still.

_Workers = Sequence[tuple[str, str]]  # Each with the session of its process.


class Retrier:
    """Sends frames again that met silence."""

    def __init__(
        self, transport: Transport, ledger: Ledger, suspicions: RetryPolicy, pulse: WorkerStats, clocks: Clocks
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._suspicions = suspicions
        self._pulse = pulse
        self._clocks = clocks
        self._frame_log = FrameLog()

    def run(self, stop: threading.Event) -> None:
        """Look after the frames in flight until stopped; the body of the retrying thread."""
        departed_ns = self._transport.departed_ns()
        while not stop.is_set():
            wait_s = self._look(departed_ns)
            departed_ns = self._transport.departed_ns(after_ns=departed_ns, timeout_s=wait_s)

    def _look(self, departed_ns: int) -> float:
        """Send again what is due; how many seconds to wait until the next look."""
        journeys = self._ledger.in_flight()
        if not journeys:
            return _LOOK_S
        workers = self._transport.online()
        now_ns = clock.now_ns()
        moving = [worker for worker in workers if not self._stands_still(worker, len(workers), now_ns)]
        if 0 < len(moving) < len(workers):  # Where none moves, it is the link, or this process itself.
            for name, _ in set(workers) - set(moving):
                self._frame_log.stands_still(name)
            workers, departed_ns = moving, now_ns
        suspicions = self._suspicions.of(journeys, len(workers), departed_ns, now_ns)
        later_ns = [suspicion.due_ns for suspicion in suspicions if suspicion.due_ns > now_ns]
        for suspicion in suspicions:
            if suspicion.due_ns <= now_ns:
                self._send(suspicion.journey, self._most_alive(workers, suspicion.journey))
        return min(_LOOK_S, max(_LEAST_S, (min(later_ns) - now_ns) / 1e9)) if later_ns else _LOOK_S

    def _send(self, journey: FrameRecord, worker: str) -> None:
        message = journey.message
        if message is None:
            return
        sent_ns = clock.now_ns()
        if not self._ledger.reopen(journey, sent_ns):
            return
        self._frame_log.sent_again(journey.id, worker, sent_ns - journey.times[Stage.SENT])
        budget_ms = None if journey.deadline_ns is None else max(0, (journey.deadline_ns - sent_ns) // 10**6)
        message = replace(message, attempt=journey.attempts, stamps=journey.stamps_of(2), budget_ms=budget_ms)
        # Where that worker is gone as well, time closes the frame: there is no third attempt.
        self._transport.send(message, self._transport.pack(message), lambda _: None, worker=worker)

    def _most_alive(self, workers: _Workers, journey: FrameRecord) -> str:
        """Who answered last since the frame left; where nobody did, who was last heard of."""
        sent_ns = journey.times[Stage.SENT]

        def alive(worker: tuple[str, str]) -> tuple[int, int]:
            answered_ns = self._pulse.answered_ns(worker[0])
            return (answered_ns if answered_ns > sent_ns else 0, max(answered_ns, self._echoed_ns(worker)))

        return max(workers, key=alive)[0]

    def _stands_still(self, worker: tuple[str, str], workers: int, now_ns: int) -> bool:
        echoed_ns = self._echoed_ns(worker)
        return 0 < echoed_ns < now_ns - _MISSED * gap_ns(workers)

    def _echoed_ns(self, worker: tuple[str, str]) -> int:
        return self._clocks.echoed_ns(f"cloud/{worker[0]}/{worker[1]}")
