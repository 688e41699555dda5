"""The pulse of the workers: how long answers take of late, who answered when, and what retrying was good for."""

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np

_WINDOW = 100  # Answers that count: those of now, not those of the run's beginning.
_MOST_WORKERS = 512
_MOST_CAUTION = 16


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """How long the last answers took, in nanoseconds from sent to returned."""

    count: int = 0
    median_ns: int = 0
    p95_ns: int = 0
    p99_ns: int = 0


class WorkerStats:
    """What a vehicle hears of its workers. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took_ns: deque[int] = deque(maxlen=_WINDOW)
        self._sent_ns: deque[int] = deque(maxlen=_WINDOW)
        self._times: AnswerTimes | None = AnswerTimes()  # None: something came in since it was worked out.
        self._answered_ns: OrderedDict[str, int] = OrderedDict()  # By worker, the one that answered last at the end.
        self._caution = 1
        self._calm = 0  # Answers since the last retry that was in vain.

    @property
    def times(self) -> AnswerTimes:
        """How long answers take."""
        with self._lock:
            if self._times is None:
                median, p95, p99 = np.percentile(self._took_ns, (50, 95, 99), method="higher")
                self._times = AnswerTimes(len(self._took_ns), int(median), int(p95), int(p99))
            return self._times

    @property
    def caution(self) -> int:
        """How many times longer than usual a silence has to last: it doubles with every retry that was in vain."""
        with self._lock:
            return self._caution

    def answered(self, worker: str, sent_ns: int, returned_ns: int) -> None:
        """A worker answered a frame."""
        with self._lock:
            self._took_ns.append(returned_ns - sent_ns)
            self._sent_ns.append(sent_ns)
            self._times = None
            self._answered_ns[worker] = returned_ns
            self._answered_ns.move_to_end(worker)
            if len(self._answered_ns) > _MOST_WORKERS:
                self._answered_ns.popitem(last=False)
            self._calm += 1
            if self._calm >= _WINDOW:
                self._caution, self._calm = max(1, self._caution // 2), 0

    def retried(self, *, in_vain: bool) -> None:
        """A frame that was sent twice has its answer. `in_vain`: the first attempt would have done."""
        with self._lock:
            self._caution = min(_MOST_CAUTION, self._caution * 2) if in_vain else max(1, self._caution // 2)
            self._calm = 0

    def answered_ns(self, worker: str) -> int:
        """When a worker last answered; 0 where it has not."""
        with self._lock:
            return self._answered_ns.get(worker, 0)

    def last_answered_ns(self) -> int:
        """When anybody last answered; 0 where nobody has."""
        with self._lock:
            return next(reversed(self._answered_ns.values()), 0)

    def overtakers(self, sent_ns: int) -> int:
        """How many of the last answers are to frames that were sent later."""
        with self._lock:
            return sum(other_ns > sent_ns for other_ns in self._sent_ns)
