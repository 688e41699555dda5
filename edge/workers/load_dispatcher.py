"""Dispatch by load: a frame goes to the worker from which the answer is expected first.

A worker reports how long a frame that arrives now would wait, and how long it would then take. The vehicle adds the round
trip and the frames that it has sent since that report.

- If all workers are expected to answer about equally soon, the broker deals the frame to the shared group in turn. It knows
  the frames of all vehicles, so no two workers get the same turn.
- Otherwise, the vehicle draws two workers at random and takes the better one. If every vehicle took the best of all, those
  that know the same reports would all choose the same worker (Mitzenmacher, "The Power of Two Choices in Randomized Load
  Balancing", 2001). A vehicle that shares the workers with no other one compares all of them.

A worker is on trial until it has answered this vehicle, and again when it keeps a frame: it gets one frame at a time, after
ever longer waits, and no frame that another worker has kept. While one is on trial, no frame goes to the shared group, in
which the broker could give it to that worker.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from edge.frame_record import GROUP, Assignment, FrameRecord
from edge.workers.worker_directory import WorkerView, WorkerWatch
from edge.workers.worker_stats import KnownLoad, overdue_ns

_STALE_NS = 5_000_000_000  # Age of a report after which its worker counts as frozen; workers report every 2 s.
_REFUSAL_NS = 1_000_000_000  # Time for which a worker that refused a frame gets no others.
_SHARED_NS = 2_000_000_000  # Time for which frames of other vehicles count after they were last seen.
_FEWEST = 2  # Number of workers from which there is a choice.
_DRAWN = 2  # Number of workers drawn at random.
_MS = 1_000_000
_NOISE_NS = 5 * _MS  # Shorter times are within the error of the estimates.
_SAME_SPEED = 1.25  # Workers are equally fast if their inference times differ by less than this factor,
_SAME_QUEUE = 2.5  # and equally busy if their expected answers differ by less than the time of this many frames.
_TIE = 1.05  # Two workers are equally good if their expected answers differ by less than this factor.


class _Candidate(NamedTuple):
    """A worker whose load is known, and the frames of this vehicle that it has or that are on their way."""

    name: str
    round_trip_ns: int
    known: KnownLoad
    own: Sequence[FrameRecord]


class _Evaluation(NamedTuple):
    """The expected answer of a worker."""

    name: str
    answer_ns: int  # Expected time until the answer to a frame that is sent now.
    total_ns: float  # `answer_ns` and the lateness of its answers.


class LoadDispatcher:
    """Chooses workers by load. See Dispatcher."""

    def __init__(self, watch: WorkerWatch, rng: random.Random | None = None) -> None:
        self._watch = watch
        self._rng = rng or random.Random()
        self._shared_ns = 0  # Time of the last report that counted frames of other vehicles.

    def choose(self, in_flight: Sequence[FrameRecord], now_ns: int, excluded: Collection[str] = ()) -> Assignment:
        """See Dispatcher. Without a choice or a known load, the frame goes to the shared group."""
        online = self._watch.online(now_ns)
        if len(online) < _FEWEST:
            return GROUP
        others = [worker for worker in online if worker.name not in excluded]
        reported, unreported, untried = self._survey(others, in_flight, now_ns)
        proven = [each for each in reported if not each.known.is_on_trial]
        trusted = proven if proven and excluded else [each for each in reported if _may_try(each, now_ns)] or reported
        candidates = [each for each in trusted if _accepts(each, now_ns)] or trusted
        if not candidates:
            return GROUP
        if len(candidates) == len(proven) == len(online) and _are_equally_fast(candidates):
            evaluated = [_evaluate(candidate, now_ns) for candidate in candidates]
            if _are_equally_busy(candidates, evaluated):
                return Assignment("group", None, max(evaluation.answer_ns for evaluation in evaluated))
        best = self._best(candidates, unreported, now_ns)
        if untried and proven and not excluded and self._rng.random() * len(online) < 1:
            return Assignment("load", self._rng.choice(untried), best.expected_ns or 1)
        return best

    def _survey(
        self, workers: Sequence[WorkerView], in_flight: Sequence[FrameRecord], now_ns: int
    ) -> tuple[list[_Candidate], int, list[str]]:
        """Returns the workers whose load is known, the number of workers without a report, and the names to try."""
        own = _by_worker(in_flight)
        reported, unreported, untried = [], 0, []
        for worker in workers:
            name, known = worker.name, worker.known or KnownLoad()
            if known.session != worker.session:
                unreported += not known.is_on_trial
                if known.is_on_trial and name not in own and known.is_tried_again(now_ns):
                    untried.append(name)
            elif now_ns - known.at_ns < _STALE_NS and not worker.is_unresponsive:
                reported.append(_Candidate(name, worker.round_trip_ns, known, own.get(name, ())))
                self._note_others(reported[-1], now_ns)
        return reported, unreported, untried

    def _best(self, candidates: Sequence[_Candidate], unreported: int, now_ns: int) -> Assignment:
        """Returns the best of the workers that are drawn. `unreported`: number of workers whose load is unknown."""
        count = len(candidates) + unreported
        is_alone = not unreported and now_ns - self._shared_ns >= _SHARED_NS
        places = range(count) if is_alone else self._rng.sample(range(count), min(_DRAWN, count))
        drawn = [_evaluate(candidates[place], now_ns) for place in places if place < len(candidates)]
        if len(drawn) < len(places):
            return GROUP  # The broker gives workers of earlier releases, which report no load, their share.
        limit_ns = min(evaluation.total_ns for evaluation in drawn) * _TIE
        best = self._rng.choice([evaluation for evaluation in drawn if evaluation.total_ns <= limit_ns])
        return Assignment("load", best.name, best.answer_ns)

    def _note_others(self, candidate: _Candidate, now_ns: int) -> None:
        """Remembers the time of a report that counts frames of other vehicles."""
        known = candidate.known
        if known.load.queue and known.load.queue > sum(record.sent_ns <= known.at_ns for record in candidate.own):
            self._shared_ns = now_ns


def _by_worker(in_flight: Sequence[FrameRecord]) -> Mapping[str, Sequence[FrameRecord]]:
    own: defaultdict[str, list[FrameRecord]] = defaultdict(list)
    for record in in_flight:
        own[record.worker].append(record)
    return own


def _may_try(candidate: _Candidate, now_ns: int) -> bool:
    """Returns whether a worker may get a frame; a worker on trial gets one at a time."""
    known = candidate.known
    return not known.is_on_trial or (not candidate.own and known.is_tried_again(now_ns))


def _accepts(candidate: _Candidate, now_ns: int) -> bool:
    """Returns whether a worker has room for another frame and has not just refused one."""
    known, uncounted = candidate.known, len(candidate.own)
    if uncounted >= known.load.free > 0:
        uncounted = len(_uncounted(candidate))
    return known.load.free > uncounted and now_ns - known.refused_ns >= _REFUSAL_NS


def _evaluate(candidate: _Candidate, now_ns: int) -> _Evaluation:
    known, load, round_trip_ns = candidate.known, candidate.known.load, candidate.round_trip_ns
    uplink_ns = round_trip_ns // 2
    free_at_ns = known.at_ns - uplink_ns + load.wait_ms * _MS  # Time at which the engine can take another frame.
    late_ns = known.lateness_ns(now_ns)
    if candidate.own:
        for record in _uncounted(candidate):
            free_at_ns = max(free_at_ns, record.sent_ns + uplink_ns) + load.spacing_ms * _MS
        overdue = [overdue_ns(record, now_ns) for record in candidate.own if record.expected_ns]
        late_ns = max(late_ns, *overdue, 0.0)  # Grows while the worker does not answer.
    wait_ns = max(0.0, free_at_ns - now_ns - uplink_ns)
    answer_ns = max(1, round(wait_ns + load.answer_ms * _MS + round_trip_ns))
    return _Evaluation(candidate.name, answer_ns, answer_ns + late_ns)


def _uncounted(candidate: _Candidate) -> list[FrameRecord]:
    """Returns the own frames that a worker's report cannot count, because they arrive later."""
    counted_until_ns = candidate.known.at_ns - candidate.round_trip_ns  # Send time of the last frame that it can count.
    return [record for record in candidate.own if record.sent_ns >= counted_until_ns]


def _are_equally_fast(candidates: Sequence[_Candidate]) -> bool:
    answers_ms = [candidate.known.load.answer_ms for candidate in candidates]
    return max(answers_ms) <= min(answers_ms) * _SAME_SPEED + _NOISE_NS / _MS


def _are_equally_busy(candidates: Sequence[_Candidate], evaluated: Sequence[_Evaluation]) -> bool:
    totals_ns = [evaluation.total_ns for evaluation in evaluated]
    frame_ns = max(candidate.known.load.spacing_ms for candidate in candidates) * _MS
    return max(totals_ns) - min(totals_ns) <= frame_ns * _SAME_QUEUE + _NOISE_NS
