"""Dispatch by load: a frame goes to the worker from which the answer is expected first.

The worker reports how long a frame that arrives now would wait, and how long it would then take. The vehicle adds the
round trip and the frames that it has sent since that report. It draws two workers at random and takes the better one:
if every vehicle took the best of all, those that know the same reports would all choose the same worker (Mitzenmacher,
"The Power of Two Choices in Randomized Load Balancing", 2001). A vehicle that shares the workers with no other one
compares all of them.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from edge.dispatch.dispatcher import GROUP, Assignment
from edge.dispatch.worker_loads import KnownLoad, overdue_ns
from edge.reliability.clock_sync import is_unresponsive
from edge.reliability.frame_record import FrameRecord
from edge.reliability.worker_clocks import WorkerClocks
from edge.reliability.worker_directory import WorkerDirectory

_STALE_NS = 5_000_000_000  # Age of a report after which its worker counts as frozen; workers report every 2 s.
_REFUSAL_NS = 1_000_000_000  # Time for which a worker that refused a frame gets no others.
_SHARED_NS = 2_000_000_000  # Time for which frames of other vehicles count after they were last seen.
_TIE = 1.05  # Expected answers that differ by less than this factor count as equal.
_DRAWN = 2
_MS = 1_000_000


class _Candidate(NamedTuple):
    """A worker whose load is known, and the frames that this vehicle has in flight to it."""

    name: str
    known: KnownLoad
    own: Sequence[FrameRecord]
    round_trip_ns: int


class LoadDispatcher:
    """Chooses the worker with the shortest expected answer of two that are drawn at random. See Dispatcher."""

    def __init__(self, workers: WorkerDirectory, clocks: WorkerClocks, rng: random.Random | None = None) -> None:
        self._workers = workers
        self._clocks = clocks
        self._rng = rng or random.Random()
        self._shared_ns = 0  # When a report last counted frames of other vehicles.

    def choose(self, in_flight: Sequence[FrameRecord], now_ns: int, excluded: Collection[str] = ()) -> Assignment:
        """See Dispatcher. Without a known load, the frame goes to the shared group."""
        if self._workers.loads is None:
            return GROUP
        online = self._workers.online()
        known, own = self._workers.loads.known(), _by_worker(in_flight)
        reported, unreported = [], 0
        for worker in online:
            name, session = worker
            if name in excluded:
                continue
            found = known.get(name)
            if found is None or found.session != session:
                unreported += 1
            elif now_ns - found.at_ns < _STALE_NS and not is_unresponsive(self._clocks, worker, len(online), now_ns):
                round_trip_ns = self._clocks.round_trip_ns(f"cloud/{name}/{session}")
                reported.append(_Candidate(name, found, own.get(name, ()), round_trip_ns))
        candidates = [each for each in reported if _accepts(each, now_ns)] or reported
        if self._is_alone(reported, now_ns) and not unreported:
            drawn = candidates
        else:
            places = self._rng.sample(range(len(candidates) + unreported), min(_DRAWN, len(candidates) + unreported))
            drawn = [candidates[place] for place in places if place < len(candidates)]
            if len(drawn) < len(places):
                return GROUP  # An older worker, whose load is unknown, was drawn: the broker gives it its share.
        return self._best(drawn, now_ns)

    def _best(self, drawn: Sequence[_Candidate], now_ns: int) -> Assignment:
        if not drawn:
            return GROUP
        answers_ns = [_answer_ns(each, now_ns) for each in drawn]
        late_ns = [_lateness_ns(each, now_ns) for each in drawn]
        totals_ns = [sum(each) for each in zip(answers_ns, late_ns, strict=True)]
        limit_ns = min(totals_ns) * _TIE
        place = self._rng.choice([place for place, total_ns in enumerate(totals_ns) if total_ns <= limit_ns])
        return Assignment("load", drawn[place].name, answers_ns[place])

    def _is_alone(self, reported: Sequence[_Candidate], now_ns: int) -> bool:
        """Returns whether the workers have had frames of this vehicle only."""
        for each in reported:
            if each.known.load.queue > sum(record.sent_ns <= each.known.at_ns for record in each.own):
                self._shared_ns = now_ns
        return now_ns - self._shared_ns >= _SHARED_NS


def _by_worker(in_flight: Sequence[FrameRecord]) -> Mapping[str, Sequence[FrameRecord]]:
    own: defaultdict[str, list[FrameRecord]] = defaultdict(list)
    for record in in_flight:
        own[record.worker].append(record)
    return own


def _unreported(candidate: _Candidate) -> list[FrameRecord]:
    """Returns the own frames that arrive at the worker after it has sent its report."""
    counted_until_ns = candidate.known.at_ns - candidate.round_trip_ns
    return [record for record in candidate.own if record.sent_ns >= counted_until_ns]


def _accepts(candidate: _Candidate, now_ns: int) -> bool:
    """Returns whether a worker has room for another frame and has not just refused one."""
    known = candidate.known
    return known.load.free > len(_unreported(candidate)) and now_ns - known.refused_ns >= _REFUSAL_NS


def _answer_ns(candidate: _Candidate, now_ns: int) -> int:
    """Returns the expected time until the answer to a frame that is sent now."""
    load, round_trip_ns = candidate.known.load, candidate.round_trip_ns
    uplink_ns = round_trip_ns // 2
    free_at_ns = candidate.known.at_ns - uplink_ns + load.wait_ms * _MS  # When the engine can take another frame.
    for record in _unreported(candidate):
        free_at_ns = max(free_at_ns, record.sent_ns + uplink_ns) + load.spacing_ms * _MS
    wait_ns = max(0.0, free_at_ns - now_ns - uplink_ns)
    return max(1, round(wait_ns + load.answer_ms * _MS + round_trip_ns))


def _lateness_ns(candidate: _Candidate, now_ns: int) -> float:
    """Returns the time by which the answer will probably exceed the expected one.

    It bounds what a worker gains that reports too little, and it grows while a worker does not answer at all.
    """
    overdue = (overdue_ns(record, now_ns) for record in candidate.own if record.expected_ns)
    return max(candidate.known.lateness_ns(now_ns), *overdue, 0.0)
