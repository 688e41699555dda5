"""Statistics of the workers' replies and of retries, and the workers' loads, as reported and as answers show them."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from edge.frame_record import FrameRecord
from shared.messages.frame import ResultMessage, Status
from shared.messages.load import WorkerLoad, unpack_load
from shared.messages.msgpack_reader import MessageError
from shared.mqtt.bus import Delivery

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
        """Percentiles of the recent reply times."""
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


_MAX_LOADS = 256
_MAX_REPORTS_HZ = 10  # Limit of reports that are read per worker and second; workers send at most two.
_LATE_FACTOR = 2  # An answer is late if it takes longer than this factor × the expected time + _LATE_NS:
_LATE_NS = 10_000_000  # a smaller excess can come from other vehicles or a busy machine.
_NEW_SHARE = 0.25  # Weight of the newest answer in the smoothed lateness.
_TRIAL_WAIT_NS = 2_000_000_000  # Wait before a worker that kept a frame gets another one; doubled each time,
_MAX_TRIAL_DOUBLINGS = 5  # up to this number of times.
_HALF_LIFE_NS = 2_000_000_000  # Half-life of the lateness of a worker that gets no frames; it is then tried again.


def overdue_ns(record: FrameRecord, now_ns: int) -> int:
    """Returns by how much a frame without an answer exceeds the time that counts as late; negative if it is not late."""
    return now_ns - record.sent_ns - _LATE_FACTOR * record.expected_ns - _LATE_NS


class KnownLoad(NamedTuple):
    """The latest report of a worker, and what this vehicle knows about its answers."""

    session: str = ""  # The process that sent the report; empty without a report.
    load: WorkerLoad = WorkerLoad(0, 0, 0.0, 0.0, 0.0)
    at_ns: int = 0  # Arrival of the report, by the clock of this vehicle.
    late_ns: float = 0.0  # Smoothed lateness of its answers at `late_at_ns`, beyond _LATE_FACTOR and _LATE_NS.
    late_at_ns: int = 0
    refused_ns: int = 0  # Time at which it last refused a frame of this vehicle, or could not be reached.
    answered_ns: int = 0  # Time of its last answer to this vehicle; 0: none yet.
    silent_ns: int = 0  # Time at which a frame that it had was last given up; 0: never.
    silences: int = 0  # Number of times in a row that it was silent when it was tried.

    @property
    def is_on_trial(self) -> bool:
        """True until its first answer, and from a silence until its next answer; it then gets one frame at a time."""
        return self.silent_ns >= self.answered_ns

    def is_tried_again(self, now_ns: int) -> bool:
        """Returns whether a worker on trial has been left alone for long enough to get a frame."""
        doublings = min(self.silences - 1, _MAX_TRIAL_DOUBLINGS)
        return not self.silences or now_ns - self.silent_ns >= _TRIAL_WAIT_NS << doublings

    def lateness_ns(self, now_ns: int) -> float:
        """Returns the lateness to expect now: without newer answers, it decays."""
        return self.late_ns * 0.5 ** ((now_ns - self.late_at_ns) / _HALF_LIFE_NS) if self.late_ns else 0.0


class WorkerLoads:
    """Keeps the loads that workers report for one model. All methods may be called from any thread."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._known: OrderedDict[str, KnownLoad] = OrderedDict()
        self._ignored: Counter[str] = Counter()
        self._read: dict[str, tuple[int, int]] = {}  # Second and number of the reports that were read, by worker.

    @property
    def ignored(self) -> Mapping[str, int]:
        """The number of ignored reports by reason."""
        with self._lock:
            return dict(self._ignored)

    def known(self) -> Mapping[str, KnownLoad]:
        """Returns the known load of each worker, by name."""
        with self._lock:
            return dict(self._known)

    def announced(self, worker: str, session: str | None, delivery: Delivery) -> None:
        """Processes a report from the topic of a worker; runs on the network thread.

        `session`: the process of that name by its status; None if it is offline. A report of another process is ignored.
        """
        if not len(delivery.payload) or (session is None and delivery.retained):
            return  # A worker that signed off, or one that was killed before this run.
        with self._lock:
            if session is None:
                self._ignored["unknown_worker"] += 1
            elif self._is_flood(worker, delivery.received_ns):
                self._ignored["too_many"] += 1
            else:
                self._read_report(worker, session, delivery)

    def replied(self, record: FrameRecord, message: ResultMessage, session: str, returned_ns: int) -> None:
        """Processes the reply to an attempt of a frame. `session`: the process that replied, by its stamps."""
        with self._lock:
            if message.load is not None and session:
                self._add(message.worker, session, message.load, returned_ns)
            if message.status is Status.ANSWERED:
                self._update(message.worker, answered_ns=returned_ns, silences=0)
            elif message.status is not Status.EXPIRED:
                self._update(message.worker, refused_ns=returned_ns)
            if record.expected_ns and record.worker in ("", message.worker):
                late_ns = overdue_ns(record, returned_ns)
                before_ns = self._of(message.worker).lateness_ns(returned_ns)
                smoothed_ns = max(0.0, before_ns + _NEW_SHARE * (late_ns - before_ns))
                self._update(message.worker, late_ns=smoothed_ns, late_at_ns=returned_ns)

    def unanswered(self, record: FrameRecord, now_ns: int) -> None:
        """Reports a frame that was given up, or is sent to another worker, because its worker is silent."""
        if not record.worker or not record.expected_ns:
            return
        with self._lock:
            late_ns = overdue_ns(record, now_ns)
            before = self._of(record.worker)
            # Several unanswered frames at the same time count as one silence.
            silences = before.silences + (record.sent_ns >= before.silent_ns)
            self._update(
                record.worker,
                late_ns=max(before.lateness_ns(now_ns), late_ns),
                late_at_ns=now_ns,
                silent_ns=now_ns,
                silences=silences,
            )

    def answered(self, worker: str, now_ns: int) -> None:
        """Reports that a worker is not silent: it answered, if only after another worker had."""
        with self._lock:
            self._update(worker, answered_ns=now_ns, silences=0)

    def unreachable(self, worker: str, now_ns: int) -> None:
        """Reports that the broker could not deliver a frame to a worker."""
        with self._lock:
            self._update(worker, refused_ns=now_ns)

    def _is_flood(self, worker: str, now_ns: int) -> bool:
        second, count = self._read.get(worker, (0, 0))
        count = count + 1 if second == now_ns // 10**9 else 1
        self._read[worker] = (now_ns // 10**9, count)
        if len(self._read) > _MAX_LOADS:
            del self._read[next(iter(self._read))]
        return count > _MAX_REPORTS_HZ

    def _read_report(self, worker: str, session: str, delivery: Delivery) -> None:
        try:
            report = unpack_load(delivery.payload)
        except MessageError:
            self._ignored["unreadable"] += 1
            return
        if report.session != session:
            self._ignored["other_session"] += 1
        elif (load := report.models.get(self._model)) is not None:
            self._add(worker, session, load, delivery.received_ns)

    def _add(self, worker: str, session: str, load: WorkerLoad, at_ns: int) -> None:
        """Replaces the report of a worker by a newer one; a new process has no history."""
        before = self._of(worker)
        if before.session and session != before.session:  # Its silences count: any client can invent a session.
            silent = {"silent_ns": before.silent_ns, "silences": before.silences}
            self._known[worker] = KnownLoad(session, load, at_ns, **silent)
        elif at_ns >= before.at_ns:
            self._update(worker, session=session, load=load, at_ns=at_ns)

    def _of(self, worker: str) -> KnownLoad:
        return self._known.get(worker, KnownLoad())

    def _update(self, worker: str, **changes: Any) -> None:
        self._known[worker] = self._of(worker)._replace(**changes)
        self._known.move_to_end(worker)
        if len(self._known) > _MAX_LOADS:
            self._known.popitem(last=False)
