"""All workers by their status messages, which of them serve a model, and which are alive."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edge.workers.worker_clocks import WorkerClocks, probe_interval_ns
from edge.workers.worker_stats import KnownLoad, WorkerLoads, WorkerStats
from shared import clock
from shared.compression import Buffer
from shared.errors import SkylaneError, suggestion
from shared.logs import get_logger
from shared.messages import topics
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import NodeState, NodeStatus, unpack_status
from shared.mqtt.bus import Delivery

_LOG = get_logger("edge")
UNRESPONSIVE_AFTER_S = 10.0
_MISSED_PROBES = 3  # Number of probe intervals without an echo after which a worker counts as unresponsive.
_PING_INTERVAL_NS = 1_000_000_000
_WAITING_S = 2.0  # Interval of reports while waiting for a worker.
_MAX_WORKERS = 256
_MAX_CARDS = 256  # Announced cards of the model that are remembered; each change of the model adds one.
_DRAINED_REPLIES_NS = 250_000_000  # Time in which the last replies of a drained worker are read.


class NoWorkerError(SkylaneError):
    """No worker serves the model. `is_final`: all workers refused this vehicle, so waiting does not help."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        self.is_final = is_final
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """A worker and its latest status."""

    name: str
    status: NodeStatus

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """Cards of the models that the worker serves; none unless it is online."""
        return self.status.cards if self.status.state is NodeState.ONLINE else ()

    def ends(self, other: "KnownWorker") -> bool:
        """Returns whether this status shows that the process of an earlier status has ended, drained or not."""
        return self.status.session != other.status.session or self.status.state is NodeState.OFFLINE

    def is_outdated_by(self, other: "KnownWorker") -> bool:
        """Returns whether this is the late sign-off of a process that another one has replaced."""
        return self.status.state is NodeState.OFFLINE and self.status.session != other.status.session


class WorkerEnd(NamedTuple):
    """The end of a worker's process."""

    at_ns: int
    lost_ns: int  # Time at which unanswered frames that were sent to it before its end are lost.


@dataclass(frozen=True, slots=True)
class Failures:
    """The losses after which frames in flight are sent again. Times by the clock of this vehicle; 0: never."""

    latest_ns: int = 0  # Last loss of a worker or of the connection.
    connection_ns: int = 0  # Last reconnect to the broker: frames sent before may be lost.
    ended: Mapping[str, WorkerEnd] = field(default_factory=dict)  # The latest end of each worker.
    unresponsive: frozenset[str] = frozenset()  # Names of workers that hang.
    on_trial: frozenset[str] = (
        frozenset()
    )  # Workers that have not answered this vehicle, or not since they were silent.


class WorkerDirectory:
    """All workers that are online, and those that serve a model; logs their changes. Thread-safe."""

    def __init__(self, model: str, version: str | None = None, loads: WorkerLoads | None = None) -> None:
        """`version`: version of the model; None: any. `loads`: loads of the workers; None: not used."""
        self.loads = loads
        self.model = model
        self._version = version
        self._condition = threading.Condition()
        self._workers: dict[str, KnownWorker] = {}
        self._announced: dict[
            tuple[str, str], ModelCard
        ] = {}  # Cards of the model by version and hash, also former ones.
        self._online: list[tuple[str, str]] | None = None  # None: outdated by a change of `_workers`.
        self._failed: dict[str, tuple[KnownWorker, int]] = {}  # Last status and time of failure by name.
        self._ended: dict[str, WorkerEnd] = {}  # Latest end of a process by name.
        self._reconnected_ns = 0

    def announced(self, delivery: Delivery) -> None:
        """Processes a status message from the broker; runs on the network thread."""
        names = topics.WORKER_STATUS.names_in(delivery.topic)
        if names is not None:
            self.update(names["worker"], delivery.payload)

    def load_announced(self, delivery: Delivery) -> None:
        """Processes a load report from the broker; runs on the network thread."""
        names = topics.LOADS.names_in(delivery.topic)
        if names is None or self.loads is None:
            return
        with self._condition:
            worker = self._workers.get(names["worker"])
        self.loads.announced(names["worker"], worker.status.session if worker else None, delivery)

    def update(self, name: str, payload: Buffer) -> None:
        """Processes the packed status of a worker; a malformed one removes the worker, an outdated one is ignored."""
        with self._condition:
            self._online = None
            try:
                worker = KnownWorker(name, unpack_status(payload))
            except MessageError:
                self._workers.pop(name, None)
            else:
                before = self._workers.get(name)
                if before is not None and worker.is_outdated_by(before):
                    return
                self._remember_cards(worker)
                if before is not None and worker.ends(before):
                    self._add_end(before)
                    if before.cards:
                        self._add_failure(before)
                # The broker retains the last status of every name that was ever used: offline workers are not stored.
                if worker.status.state is NodeState.OFFLINE:
                    self._workers.pop(name, None)
                    _log_change(before, worker)
                elif before is not None or len(self._workers) < _MAX_WORKERS:
                    self._workers[name] = worker
                    _log_change(before, worker)
            self._condition.notify_all()

    def left(self, name: str, *, is_drained: bool = False) -> None:
        """Removes a worker that cannot be reached. `is_drained`: it still answers the frames that it has."""
        with self._condition:
            worker = self._workers.pop(name, None)
            self._online = None
            if worker is not None:
                _LOG.log(logging.INFO if is_drained else logging.WARNING, "worker left", worker=name)
            if worker is not None and worker.cards and not is_drained:
                self._add_failure(worker)
            self._condition.notify_all()

    def connection_lost(self, name: str) -> None:
        """Records that frames and replies in transit may be lost, although the worker is online."""
        with self._condition:
            if worker := self._workers.get(name):
                self._add_failure(worker)
            self._condition.notify_all()

    def forget(self) -> None:
        """Removes all workers and their failures after a reconnect, and records its time; the broker sends all statuses again."""
        with self._condition:
            self._workers.clear()
            self._online = None
            self._failed.clear()
            self._ended.clear()
            self._reconnected_ns = clock.now_ns()
            self._condition.notify_all()

    def online(self) -> list[tuple[str, str]]:
        """Returns name and process session of each worker that serves the model."""
        with self._condition:
            if self._online is None:
                serving = filter(self._card_of, self._workers.values())
                self._online = [(worker.name, worker.status.session) for worker in serving]
            return self._online.copy()

    def last_failure_ns(self, *, after_ns: int = 0, timeout_s: float = 0.0) -> int:
        """Returns the time at which a worker of the model or the connection was last lost; 0 if never.

        The loss of the connection to a broker counts from the reconnect.

        Waits up to `timeout_s` for a failure later than `after_ns`.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._last_failure_ns() > after_ns, timeout_s)
            return self._last_failure_ns()

    def failures(self) -> Failures:
        """Returns the losses that concern frames in flight, without `unresponsive` and `on_trial`."""
        with self._condition:
            return Failures(self._last_failure_ns(), self._reconnected_ns, dict(self._ended))

    def announced_card(self, version: str, sha256: str) -> ModelCard | None:
        """Returns the card of the model with a version and a hash, if a worker has announced it in this run."""
        with self._condition:
            return self._announced.get((version, sha256))

    def wait_for_card(self, timeout_s: float, while_waiting: Callable[[], None] = lambda: None) -> ModelCard:
        """Returns the card of the model, as soon as a worker serves it. Calls `while_waiting` every two seconds.

        Raises:
            NoWorkerError: no worker serves it in time; the message names the models that are served.
        """
        ends_s = time.monotonic() + timeout_s
        while True:
            with self._condition:
                card = self._condition.wait_for(self._card, min(_WAITING_S, max(0.0, ends_s - time.monotonic())))
                if card is not None:
                    return card
                if time.monotonic() >= ends_s:
                    raise NoWorkerError(self._why_none(timeout_s))
            while_waiting()

    def wait_until_served(self, timeout_s: float) -> bool:
        """Waits until a worker serves the model; returns False if none does in time."""
        with self._condition:
            return self._condition.wait_for(lambda: self._card() is not None, timeout_s)

    def _last_failure_ns(self) -> int:
        failures_ns = (at_ns for worker, at_ns in self._failed.values() if self._card_of(worker))
        return max(self._reconnected_ns, *failures_ns, 0)

    def _remember_cards(self, worker: KnownWorker) -> None:
        for card in worker.cards:
            if card.name == self.model and self._version in (None, card.version):
                self._announced.pop((card.version, card.sha256), None)
                if len(self._announced) >= _MAX_CARDS:
                    del self._announced[next(iter(self._announced))]  # The oldest one.
                self._announced[card.version, card.sha256] = card

    def _add_end(self, worker: KnownWorker) -> None:
        self._ended.pop(worker.name, None)
        if len(self._ended) >= _MAX_WORKERS:
            del self._ended[next(iter(self._ended))]  # The oldest one.
        is_drained = worker.status.state is NodeState.STOPPING
        now_ns = clock.now_ns()
        self._ended[worker.name] = WorkerEnd(now_ns, now_ns + (_DRAINED_REPLIES_NS if is_drained else 0))

    def _add_failure(self, worker: KnownWorker) -> None:
        self._failed.pop(worker.name, None)
        if len(self._failed) >= _MAX_WORKERS:
            del self._failed[next(iter(self._failed))]  # The oldest failure.
        self._failed[worker.name] = (worker, clock.now_ns())

    def _card_of(self, worker: KnownWorker) -> ModelCard | None:
        """Returns a worker's card of the model; without a version, its current one, which is the first."""
        cards = (each for each in worker.cards if each.name == self.model and self._version in (None, each.version))
        return next(cards, None)

    def _card(self) -> ModelCard | None:
        return next(filter(None, map(self._card_of, self._workers.values())), None)

    def _why_none(self, timeout_s: float) -> str:
        cards = [card for worker in self._workers.values() for card in worker.cards]
        versions = sorted({card.version for card in cards if card.name == self.model})
        if versions:
            return (
                f"no worker serves version {self._version!r} of model {self.model!r}: ask for {' or '.join(versions)}"
            )
        if cards:
            return f"no worker serves model {self.model!r}{suggestion(self.model, {card.name for card in cards})}"
        waited = f" after {timeout_s:g} s" if timeout_s else ""
        return f"no worker is online{waited}: start one with 'skylane cloud serve'"


def _log_change(before: KnownWorker | None, now: KnownWorker) -> None:
    """Logs the difference between two statuses of a worker."""
    state, fields = now.status.state, {"worker": now.name, "session": now.status.session}
    models = [f"{card.name} {card.version}" for card in now.cards]
    if before is None:
        if state is NodeState.ONLINE:
            _LOG.info("worker joined", **fields, models=models)
    elif state is NodeState.OFFLINE:
        is_drained = before.status.state is NodeState.STOPPING
        _LOG.log(logging.INFO if is_drained else logging.WARNING, "worker left", **fields)
    elif before.status.session != now.status.session:
        _LOG.warning("worker restarted", **fields, models=models)
    elif state is NodeState.STOPPING and before.status.state is NodeState.ONLINE:
        _LOG.info("worker drains", **fields)
    elif before.status.cards != now.status.cards:
        _LOG.info("worker changed its models", **fields, models=models)


class WorkerView(NamedTuple):
    """The state of a worker that is online and serves the model. Times are in ns, by the clock of this vehicle."""

    name: str
    session: str  # The session of its process.
    echo_ns: int  # Arrival of its last echo of a clock probe; 0 if it never echoed one.
    round_trip_ns: int  # Smoothed time that a probe and its echo travel.
    reply_ns: int  # Arrival of its last reply to a frame; 0 before the first one.
    is_unresponsive: bool  # True if it has stopped echoing probes; False if it never echoed one.
    known: KnownLoad | None  # Its load, perhaps of an earlier process; None if nothing is known.

    @property
    def last_sign_ns(self) -> int:
        """Time of its last echo or reply; 0 before the first one."""
        return max(self.echo_ns, self.reply_ns)


class WorkerWatch:
    """Combines all that is known about each worker. All methods may be called from any thread."""

    def __init__(self, workers: WorkerDirectory, clocks: WorkerClocks, stats: WorkerStats) -> None:
        self.directory = workers
        self._clocks = clocks
        self._stats = stats

    def online(self, now_ns: int) -> list[WorkerView]:
        """Returns a view of each worker that is online and serves the model."""
        online, loads = self.directory.online(), self.directory.loads
        known = {} if loads is None else loads.known()
        silent_since_ns = now_ns - _MISSED_PROBES * probe_interval_ns(len(online))
        views = []
        for name, session in online:
            echo_ns, round_trip_ns = self._clocks.last_echo(f"cloud/{name}/{session}")
            reply_ns, load = self._stats.last_reply_ns(name), known.get(name)
            is_unresponsive = 0 < echo_ns < silent_since_ns
            views.append(WorkerView(name, session, echo_ns, round_trip_ns, reply_ns, is_unresponsive, load))
        return views


@dataclass(slots=True)
class LivenessMonitor:
    """Detects that all workers hang although the broker still lists them as online. Not thread-safe.

    A process that hangs keeps its connection; the broker reports it only after one and a half keepalives. It stops echoing
    clock probes, however, and an echo depends on nothing but the worker's network thread. A dead link looks the same from
    here, so the monitor pings the broker, if there is one. After an outage, delayed messages arrive one by one, so a silence
    must persist for a while before it counts.
    """

    watch: WorkerWatch
    last_received_ns: Callable[[], int]  # Returns when anything last arrived from the broker.
    ping: Callable[[], None]  # Makes the broker send something.
    unresponsive_after_s: float = UNRESPONSIVE_AFTER_S  # Time without an echo or a reply.
    confirm_s: float = 1.0  # Time for which this silence must persist.
    _unresponsive_since_ns: int | None = field(default=None, init=False)
    _pinged_ns: int = field(default=0, init=False)

    def all_unresponsive(self) -> bool:
        """Returns whether all workers hang; False without workers, or while one of them has never echoed a probe."""
        now_ns, unresponsive_after_ns = clock.now_ns(), round(self.unresponsive_after_s * 1e9)
        latest_ns = _latest_sign_ns(self.watch.online(now_ns))
        if not latest_ns or now_ns - latest_ns < unresponsive_after_ns:
            self._unresponsive_since_ns = None
            return False
        if self.last_received_ns() - latest_ns < unresponsive_after_ns:  # The link itself may be dead.
            if now_ns - self._pinged_ns >= _PING_INTERVAL_NS:
                self._pinged_ns = now_ns
                self.ping()
            self._unresponsive_since_ns = None
            return False
        if self._unresponsive_since_ns is None:
            self._unresponsive_since_ns = now_ns
        return now_ns - self._unresponsive_since_ns >= round(self.confirm_s * 1e9)


def _latest_sign_ns(workers: Sequence[WorkerView]) -> int:
    """Returns the latest sign of life of any worker; 0 without workers, or if one of them never echoed a probe."""
    if not all(worker.echo_ns for worker in workers):
        return 0
    return max((worker.last_sign_ns for worker in workers), default=0)
