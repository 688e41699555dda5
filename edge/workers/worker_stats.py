"""Statistics of the workers' replies: recent reply times, the last reply of each worker, and the benefit of retries."""

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np

_WINDOW = 100  # Number of recent replies that the statistics cover.
_MAX_WORKERS = 512
_MAX_SILENCE_MULTIPLIER = 16


@dataclass(frozen=True, slots=True)
class ReplyTimes:
    """Percentiles of the recent reply times, from sending a frame to receiving its reply."""

    count: int = 0
    median_ns: int = 0
    p95_ns: int = 0
    p99_ns: int = 0


class WorkerStats:
    """Collects the statistics. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._durations_ns: deque[int] = deque(maxlen=_WINDOW)
        self._sent_ns: deque[int] = deque(maxlen=_WINDOW)
        self._times: ReplyTimes | None = ReplyTimes()  # None: outdated by a new reply.
        self._last_reply_ns: OrderedDict[str, int] = OrderedDict()  # Time by worker; the latest reply is at the end.
        self._silence_multiplier = 1
        self._replies_since_retry = 0

    @property
    def times(self) -> ReplyTimes:
        """The recent reply times."""
        with self._lock:
            if self._times is None:
                median, p95, p99 = np.percentile(self._durations_ns, (50, 95, 99), method="higher")
                self._times = ReplyTimes(len(self._durations_ns), int(median), int(p95), int(p99))
            return self._times

    @property
    def silence_multiplier(self) -> int:
        """Factor for the silence that triggers a retry.

        Each needless retry doubles it; each useful one halves it, and so do 100 replies without a retry.
        """
        with self._lock:
            return self._silence_multiplier

    def add_reply(self, worker: str, sent_ns: int, returned_ns: int) -> None:
        """Adds the reply of a worker to a frame."""
        with self._lock:
            self._durations_ns.append(returned_ns - sent_ns)
            self._sent_ns.append(sent_ns)
            self._times = None
            self._last_reply_ns[worker] = returned_ns
            self._last_reply_ns.move_to_end(worker)
            if len(self._last_reply_ns) > _MAX_WORKERS:
                self._last_reply_ns.popitem(last=False)
            self._replies_since_retry += 1
            if self._replies_since_retry >= _WINDOW:
                self._silence_multiplier = max(1, self._silence_multiplier // 2)
                self._replies_since_retry = 0

    def add_retry(self, *, was_useful: bool) -> None:
        """Adds the result of a retry. `was_useful`: the reply came from the second attempt."""
        with self._lock:
            if was_useful:
                self._silence_multiplier = max(1, self._silence_multiplier // 2)
            else:
                self._silence_multiplier = min(_MAX_SILENCE_MULTIPLIER, self._silence_multiplier * 2)
            self._replies_since_retry = 0

    def last_reply_ns(self, worker: str) -> int:
        """Returns when a worker last replied; 0 if it never did."""
        with self._lock:
            return self._last_reply_ns.get(worker, 0)

    def latest_reply_ns(self) -> int:
        """Returns when any worker last replied; 0 if none did."""
        with self._lock:
            return next(reversed(self._last_reply_ns.values()), 0)

    def replies_to_later_frames(self, sent_ns: int) -> int:
        """Returns how many recent replies belong to frames that were sent after `sent_ns`."""
        with self._lock:
            return sum(other_ns > sent_ns for other_ns in self._sent_ns)
