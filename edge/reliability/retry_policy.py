"""PlannedRetry: which frames in flight met silence, and from when on that is enough to send them again.

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
window at a time on suspicion alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from edge.reliability.ledger import FrameRecord
from edge.reliability.worker_stats import AnswerTimes, WorkerStats
from shared.stages import Stage

_SILENCE_MS = 250.0
_SILENCES = 3  # Times the 95th percentile of the last answers.
_ENOUGH = 4  # Answers that tell how long answers take.
_OVERTAKERS = 2  # Later frames whose answers came first: one may be chance.
_OTHERS = 2  # Workers that there have to be, that a silent one may not be the only one.


@dataclass(frozen=True, slots=True)
class PlannedRetry:
    """A frame that is to be sent again at a moment, if nothing comes before."""

    journey: FrameRecord
    due_ns: int


class RetryPolicy:
    """Which frames are to be sent again, and when. Knows neither wire nor thread."""

    def __init__(self, pulse: WorkerStats, *, window: int, after_ms: float | None = None) -> None:
        """`window`: frames that may be in flight. `after_ms`: the silence that is enough; None: by what answers take."""
        self._pulse = pulse
        self._most_by_silence = max(1, window // 2)
        self._after_ns = None if after_ms is None else round(after_ms * 1e6)

    def of(self, journeys: Sequence[FrameRecord], workers: int, departed_ns: int, now_ns: int) -> list[PlannedRetry]:
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
                found.append(PlannedRetry(journey, due_ns))
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


def _end_ns(journey: FrameRecord) -> int:
    """Until when an answer is of use."""
    return journey.given_up_ns if journey.deadline_ns is None else journey.deadline_ns
