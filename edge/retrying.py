"""Retrying: a frame that met silence is sent once more, to a worker that is known to answer.

What a dead worker holds, in flight or queued, no broker gives to another, and it is acknowledged all the same; which
worker holds a frame, a shared subscription does not tell. So a silence is judged by how long answers take of late:

- A worker went without draining (its last will, or a new process by its name), or the connection broke: frames that were
  sent before are sent again as soon as they are silent for longer than 99 % of the last answers took. So are all frames
  while a worker stands still: it is online for all the broker knows, but has stopped echoing probes while others do.
  Where a deadline leaves less time, it is as late as an answer can still be expected by it.
- Nobody is known to be gone, but a frame is silent for longer than 3 × the 95th percentile, and 250 ms; two workers
  or more serve the model; and either frames that were sent later were answered, or none was for just as long. Where
  all are merely slow, neither holds: sending again would double a load that is too high already. Each retry that was
  in vain doubles the silence that the next one needs, up to 16 times.

No frame is sent more than twice, none whose time is up before an answer can be expected, and no more than half of the
window at a time on suspicion alone. The worker is the one that answered last since the frame left, or else the one that
last gave any sign of life.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge.clocks import Clocks
from edge.ledger import Journey, Ledger
from edge.probing import gap_ns
from edge.pulse import AnswerTimes, Pulse
from edge.transports.transport import Transport
from shared import clock
from shared.messages import pack_frame
from shared.stages import Stage

_LOOK_S = 0.1  # How often the frames in flight are looked at where nothing is due before.
_LEAST_S = 0.001
_SILENCE_MS = 250.0
_SILENCES = 3  # Times the 95th percentile of the last answers.
_ENOUGH = 4  # Answers that tell how long answers take.
_OVERTAKERS = 2  # Later frames whose answers came first: one may be chance.
_OTHERS = 2  # Workers that there have to be, that a silent one may not be the only one.
_MISSED = 3  # Probes without an echo, after which a worker stands still.

_Workers = Sequence[tuple[str, str]]  # Each with the session of its process.


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A frame that is to be sent again at a moment, if nothing comes before."""

    journey: Journey
    due_ns: int


class Suspicions:
    """Which frames are to be sent again, and when. Knows neither wire nor thread."""

    def __init__(self, pulse: Pulse, *, window: int, after_ms: float | None = None) -> None:
        """`window`: frames that may be in flight. `after_ms`: the silence that is enough; None: by what answers take."""
        self._pulse = pulse
        self._most_by_silence = max(1, window // 2)
        self._after_ns = None if after_ms is None else round(after_ms * 1e6)

    def of(self, journeys: Sequence[Journey], workers: int, departed_ns: int, now_ns: int) -> list[Suspicion]:
        """What is suspected of the frames in flight, where `workers` serve the model; the other frames can wait."""
        times = self._pulse.times
        silence_ns = self._silence_ns(times)
        places = self._most_by_silence - sum(1 for journey in journeys if journey.resent_ns)
        found = []
        for journey in journeys:
            if journey.resent_ns or journey.message is None or not workers:
                continue
            sent_ns = journey.times[Stage.SENT]
            due_ns = None
            is_known = departed_ns > sent_ns
            if is_known:
                usual_ns = times.p99_ns if silence_ns is None else min(times.p99_ns, silence_ns)
                in_time_ns = _end_ns(journey) - times.p95_ns  # Where time is short, as late as there is just enough.
                due_ns = max(departed_ns, min(sent_ns + usual_ns, in_time_ns))
            elif silence_ns is not None and workers >= _OTHERS and places > 0:
                enough_ns = sent_ns + silence_ns
                if now_ns < enough_ns or self._is_more_than_slow(sent_ns, silence_ns, now_ns):
                    due_ns = enough_ns
            if due_ns is not None and _end_ns(journey) - max(now_ns, due_ns) >= times.median_ns:
                found.append(Suspicion(journey, due_ns))
                places -= not is_known and now_ns >= due_ns
        return found

    def _silence_ns(self, times: AnswerTimes) -> int | None:
        """The silence that is enough where nobody is known to have gone; None while nothing tells."""
        if self._after_ns is not None:
            return self._after_ns * self._pulse.caution
        if times.count < _ENOUGH:
            return None
        return max(round(_SILENCE_MS * 1e6), _SILENCES * times.p95_ns) * self._pulse.caution

    def _is_more_than_slow(self, sent_ns: int, silence_ns: int, now_ns: int) -> bool:
        if self._after_ns is not None or self._pulse.overtakers(sent_ns) >= _OVERTAKERS:
            return True
        return now_ns - self._pulse.last_answered_ns() > silence_ns


class Retrier:
    """Sends frames again that met silence."""

    def __init__(
        self, transport: Transport, ledger: Ledger, suspicions: Suspicions, pulse: Pulse, clocks: Clocks
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._suspicions = suspicions
        self._pulse = pulse
        self._clocks = clocks

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
            workers, departed_ns = moving, now_ns
        suspicions = self._suspicions.of(journeys, len(workers), departed_ns, now_ns)
        later_ns = [suspicion.due_ns for suspicion in suspicions if suspicion.due_ns > now_ns]
        for suspicion in suspicions:
            if suspicion.due_ns <= now_ns:
                self._send(suspicion.journey, self._most_alive(workers, suspicion.journey))
        return min(_LOOK_S, max(_LEAST_S, (min(later_ns) - now_ns) / 1e9)) if later_ns else _LOOK_S

    def _send(self, journey: Journey, worker: str) -> None:
        message = journey.message
        if message is None:
            return
        sent_ns = clock.now_ns()
        if not self._ledger.reopen(journey, sent_ns):
            return
        budget_ms = None if journey.deadline_ns is None else max(0, (journey.deadline_ns - sent_ns) // 10**6)
        message = replace(message, attempt=journey.attempts, stamps=journey.stamps_of(2), budget_ms=budget_ms)
        # Where that worker is gone as well, time closes the frame: there is no third attempt.
        self._transport.send(message, pack_frame(message), lambda _: None, worker=worker)

    def _most_alive(self, workers: _Workers, journey: Journey) -> str:
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


def _end_ns(journey: Journey) -> int:
    """Until when an answer is of use."""
    return journey.given_up_ns if journey.deadline_ns is None else journey.deadline_ns
