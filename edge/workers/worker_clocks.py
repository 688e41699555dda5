"""Sends clock probes to the workers, and estimates the offset of each worker's clock from their echoes.

Probes are small messages, separate from the frames.
"""

import queue
import random
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shared import clock
from shared.clock import Exchange, Offset, OffsetEstimator
from shared.compression import Buffer
from shared.messages.clock_probes import MAX_PROBE_BYTES, Probe, pack_probe, unpack_echo
from shared.messages.msgpack_reader import MessageError
from shared.runtime.periodic import run_round

_MAX_NODES = 512  # A restarted worker is a new node.


class LastEcho(NamedTuple):
    """The last echo of a node, and the round trip of its probes; zeros if it never echoed a probe."""

    at_ns: int = 0  # Arrival of the last one.
    round_trip_ns: int = 0  # Smoothed time that a probe and its echo travel.


_NO_ECHO = LastEcho()


class WorkerClocks:
    """Estimates the clock offset of each node. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probed: OrderedDict[str, OffsetEstimator] = OrderedDict()
        self._unprobed: OrderedDict[str, OffsetEstimator] = OrderedDict()
        self._ignored: Counter[str] = Counter()

    @property
    def ignored(self) -> Mapping[str, int]:
        """The number of rejected echoes by reason."""
        with self._lock:
            return dict(self._ignored)

    def add_probe(self, node: str, exchange: Exchange) -> None:
        """Adds the four times of a probe and its echo by `node`."""
        with self._lock:
            _estimator(self._probed, node).add(exchange)

    def last_echo(self, node: str) -> LastEcho:
        """Returns when `node` last echoed a probe, and the round trip of its probes."""
        with self._lock:
            estimator = self._probed.get(node)
            return LastEcho(estimator.at_ns, estimator.round_trip_ns) if estimator else _NO_ECHO

    def ignore(self, reason: str) -> None:
        """Counts a rejected echo."""
        with self._lock:
            self._ignored[reason] += 1

    def offset(self, node: str, exchange: Exchange) -> Offset:
        """Returns the clock of `node` minus the vehicle's clock during `exchange`, the four times of a frame.

        Without echoed probes, the estimate uses the exchanges of frames only.
        """
        with self._lock:
            estimator = self._probed.get(node)
            if estimator is None:
                estimator = _estimator(self._unprobed, node)
                estimator.add(exchange)
            offset = estimator.offset_during(exchange)
            if offset is None:  # The clock was set since the last probe: start over with this exchange.
                estimator.add(exchange)
                offset = estimator.offset_during(exchange)
        assert offset is not None, "an estimator contradicts its first exchange"
        return offset


def _estimator(estimators: OrderedDict[str, OffsetEstimator], node: str) -> OffsetEstimator:
    """Returns the estimator of a node; beyond _MAX_NODES it replaces the one that was asked for longest ago."""
    estimator = estimators.setdefault(node, OffsetEstimator())
    estimators.move_to_end(node)
    if len(estimators) > _MAX_NODES:
        estimators.popitem(last=False)
    return estimator


_BURST = 16  # Probes in quick succession to a new process, so that its first frames have an error bound.
_BURST_INTERVAL_NS = 20_000_000
_INTERVAL_NS = 500_000_000  # The error bound grows by a quarter of a millisecond in this time.
_JITTER = 0.2  # Random part of the interval, so that probes do not coincide with frames.
_MAX_PROBES_HZ = 32  # Limit for all workers together, after their bursts.
_MAX_UNANSWERED = 512
_MAX_WAITING = 256  # Echoes that wait to be processed.
_STOP_POLL_S = 0.1


def probe_interval_ns(workers: int) -> int:
    """Returns the mean time between two probes of one worker, given the number of workers."""
    return max(_INTERVAL_NS, workers * 10**9 // _MAX_PROBES_HZ)


@dataclass(slots=True)
class _WorkerSchedule:
    """Time of a worker's next probe."""

    session: str
    due_ns: int
    burst: int = _BURST


class ProbeTracker:
    """Schedules probes and validates their echoes. Has no connection and no thread."""

    def __init__(self, session: str, clocks: WorkerClocks) -> None:
        self._session = session
        self._clocks = clocks
        self._schedules: dict[str, _WorkerSchedule] = {}
        self._sequence = 0
        self._unanswered: OrderedDict[int, tuple[str, int]] = OrderedDict()  # Worker and send time by sequence.
        self._random = random.Random()

    def restart(self) -> None:
        """Starts a new burst for every worker: another connection has other delays."""
        self._schedules.clear()

    def due(self, now_ns: int, online: Iterable[tuple[str, str]]) -> list[str]:
        """Returns the workers to probe now, and schedules the next ones. `online`: (name, session) pairs."""
        sessions = dict(online)
        self._schedules = {
            name: schedule for name, schedule in self._schedules.items() if sessions.get(name) == schedule.session
        }
        for name, session in sessions.items():
            self._schedules.setdefault(name, _WorkerSchedule(session, now_ns))
        due = [name for name, schedule in self._schedules.items() if schedule.due_ns <= now_ns]
        for name in due:
            schedule = self._schedules[name]
            schedule.burst = max(0, schedule.burst - 1)
            schedule.due_ns = now_ns + (_BURST_INTERVAL_NS if schedule.burst else self._interval_ns())
        return due

    def next_due_ns(self) -> int | None:
        """Returns when the next probe is due; None without workers."""
        return min((schedule.due_ns for schedule in self._schedules.values()), default=None)

    def probe(self, worker: str, sent_ns: int) -> Probe:
        """Returns the next probe for a worker, and remembers it for its echo."""
        probe = Probe(self._session, self._sequence, sent_ns)
        self._sequence += 1
        self._unanswered[probe.sequence] = (worker, sent_ns)
        if len(self._unanswered) > _MAX_UNANSWERED:
            self._unanswered.popitem(last=False)
        return probe

    def echoed(self, worker: str, payload: Buffer, returned_ns: int) -> None:
        """Adds a valid echo to the clocks, and counts an invalid one."""
        try:
            echo = unpack_echo(payload)
        except MessageError:
            self._clocks.ignore("unreadable")
            return
        exchange = Exchange(echo.sent_ns, echo.received_ns, echo.replied_ns, returned_ns)
        if echo.session != self._session:
            self._clocks.ignore("other_session")
        elif self._unanswered.get(echo.sequence) != (worker, echo.sent_ns):
            self._clocks.ignore("late_or_repeated")
        elif not exchange.is_consistent or not echo.node.startswith(f"cloud/{worker}/"):
            self._clocks.ignore("untrue")
        else:
            del self._unanswered[echo.sequence]
            self._clocks.add_probe(echo.node, exchange)

    def _interval_ns(self) -> int:
        jitter = self._random.uniform(1 - _JITTER, 1 + _JITTER)
        return round(probe_interval_ns(len(self._schedules)) * jitter)


class ClockProber:
    """Probes the workers' clocks in a thread, over any transport."""

    def __init__(
        self,
        session: str,
        clocks: WorkerClocks,
        *,
        online: Callable[[], Iterable[tuple[str, str]]],
        probe: Callable[[str, bytes], None],
    ) -> None:
        """Sets the callbacks.

        `online` returns name and session of each worker that serves the model. `probe` sends a packed probe to a worker
        without waiting; the transport passes the echo to `echoed`, which updates `clocks`.
        """
        self._clocks = clocks
        self._tracker = ProbeTracker(session, clocks)
        self._online = online
        self._probe = probe
        self._echoes: queue.Queue[tuple[str, Buffer, int]] = queue.Queue(_MAX_WAITING)
        self._has_reconnected = threading.Event()

    def reconnected(self) -> None:
        """Reports a new connection; may be called from any thread."""
        self._has_reconnected.set()

    def echoed(self, worker: str, payload: Buffer, returned_ns: int) -> None:
        """Queues an echo; counts it instead if it is too large, or if too many wait. May be called from any thread."""
        if len(payload) > MAX_PROBE_BYTES:  # A queue of large echoes would fill the memory.
            self._clocks.ignore("unreadable")
            return
        try:
            self._echoes.put_nowait((worker, payload, returned_ns))
        except queue.Full:
            self._clocks.ignore("too_many")

    def run(self, stop: threading.Event) -> None:
        """Probes until stopped; the body of a thread."""
        while not stop.is_set():
            if self._has_reconnected.is_set():
                self._has_reconnected.clear()
                self._tracker.restart()
            run_round("clock probes", self._probe_due)
            run_round("clock echoes", self._process_echo)

    def _probe_due(self) -> None:
        for worker in self._tracker.due(clock.now_ns(), self._online()):
            self._probe(worker, pack_probe(self._tracker.probe(worker, clock.now_ns())))

    def _process_echo(self) -> None:
        """Processes one echo, or waits for it until the next probe is due."""
        due_ns = self._tracker.next_due_ns()
        wait_s = _STOP_POLL_S if due_ns is None else min(_STOP_POLL_S, max(0.0, (due_ns - clock.now_ns()) / 1e9))
        try:
            echo = self._echoes.get(timeout=wait_s)
        except queue.Empty:
            return
        self._tracker.echoed(*echo)
