"""Outcomes and times of the frames of the last minute, of a worker or of a vehicle."""

import random
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from shared import clock
from shared.messages.node_metrics import MAX_OUTCOMES, MAX_REASON, Quantiles
from shared.runlog.percentiles import percentiles

SPAN_S = 60
_NS_PER_S = 1_000_000_000
_SAMPLES = 64  # Frames of a second whose times are kept: a random choice if there are more.
_FEWEST_FOR_P95 = 20


@dataclass(slots=True)
class _Second:
    number: int
    frames: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    times_ns: list[Mapping[str, int]] = field(default_factory=list)
    timed: int = 0  # Frames with times, of which `times_ns` keeps some.


@dataclass(frozen=True, slots=True)
class RecentSummary:
    """The frames of the last minute."""

    seconds: float  # Up to `SPAN_S`; less in the first minute.
    frames: Mapping[str, int]  # Number of frames by outcome.
    reason: str  # The most frequent reason for frames without a result; empty without one.
    times: Mapping[str, Quantiles]


class RecentFrames:
    """Counts frames by outcome, and keeps their times, second by second for a minute. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: deque[_Second] = deque()
        self._started_ns = clock.now_ns()
        self._random = random.Random(0)

    def add(self, outcome: str, times_ns: Mapping[str, int], reason: str = "") -> None:
        """Adds a frame that ended now. Its reason counts up to the first colon."""
        number = clock.now_ns() // _NS_PER_S
        with self._lock:
            if not self._seconds or self._seconds[-1].number < number:
                self._seconds.append(_Second(number))
                self._forget(number)
            second = self._seconds[-1]
            second.frames[outcome] += 1
            kind = reason.partition(":")[0][:MAX_REASON]
            if kind and (len(second.reasons) < MAX_OUTCOMES or kind in second.reasons):
                second.reasons[kind] += 1
            if times_ns:
                second.timed += 1
                place = self._random.randrange(second.timed)
                if len(second.times_ns) < _SAMPLES:
                    second.times_ns.append(times_ns)
                elif place < _SAMPLES:
                    second.times_ns[place] = times_ns

    def summary(self) -> RecentSummary:
        """Returns the last minute."""
        now_ns = clock.now_ns()
        frames: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        times: dict[str, list[int]] = {}
        with self._lock:
            self._forget(now_ns // _NS_PER_S)
            for second in self._seconds:
                frames += second.frames
                reasons += second.reasons
                for name, time_ns in chain.from_iterable(each.items() for each in second.times_ns):
                    times.setdefault(name, []).append(time_ns)
        quantiles = {name: _quantiles(values) for name, values in times.items()}
        reason = reasons.most_common(1)[0][0] if reasons else ""
        seconds = min(float(SPAN_S), (now_ns - self._started_ns) / _NS_PER_S)
        return RecentSummary(seconds, dict(frames), reason, quantiles)

    def _forget(self, number: int) -> None:
        while self._seconds and self._seconds[0].number <= number - SPAN_S:
            self._seconds.popleft()


def _quantiles(times_ns: list[int]) -> Quantiles:
    p50_ns, p95_ns = percentiles(times_ns, (50.0, 95.0))
    return Quantiles(p50_ns / 1e6, p95_ns / 1e6 if len(times_ns) >= _FEWEST_FOR_P95 else None)
