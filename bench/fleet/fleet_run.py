"""Runs a fleet of vehicles for a time: connects them, sends their frames, and accounts for every frame."""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.fleet.arrivals import FleetArrivals, FleetPacer, schedules
from bench.fleet.vehicle import EncodedImage, FleetShared, FleetVehicle, TaggedReply
from bench.fleet.worker_pool import MODEL, WorkerPool
from cloud.gateway.gateway import raise_file_limit
from edge.config import EdgeConfig
from edge.workers.worker_clocks import WorkerClocks
from ops.broker.broker import Broker
from shared import clock
from shared.resources.sampler import RESOURCES_NAME, ResourceSampler
from shared.runtime.threads import ThreadGroup

FLEET_NODE, BROKER_NODE = "vehicle/fleet", "broker"
_CONNECT_TIMEOUT_S = 60.0  # Two hundred vehicles connect one after the other to a broker that may be busy.
_POLL_S = 0.1
_JOIN_TIMEOUT_S = 60.0
_SETTLE_S = 1.0  # Time from the connections to the first frame, in which the first clock probes and loads arrive.
_RETRY_INTERVAL_S = 0.1
_SAMPLE_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The load of one run."""

    vehicles: int
    arrivals: FleetArrivals
    rate_hz: float  # Frame rate of each vehicle; not used by saturated vehicles.
    window: int
    seconds: float
    seed: int
    dispatch: str
    retry: bool = True
    answer_timeout_s: float = 30.0

    def config(self, number: int, broker: str) -> EdgeConfig:
        """Returns the configuration of a vehicle; `number` starts at 1."""
        return EdgeConfig.model_validate(
            {
                "vehicle": f"vehicle-{number:03d}",
                "broker": broker,
                "model": MODEL,
                "dispatch": self.dispatch,
                "codec": "raw",
                "window": self.window,
                "retry": self.retry,
                "answer_timeout_s": self.answer_timeout_s,
                "connect_timeout_s": _CONNECT_TIMEOUT_S,
            }
        )


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Something that is done to the workers during a run."""

    at_s: float  # Time since the first frame was due.
    do: Callable[[], object]


@dataclass(slots=True)
class FleetTimes:
    """The times of a run, which its log files do not have. Times are by this process's clock."""

    folder: Path
    begin_ns: int = 0
    end_ns: int = 0  # No frame was due after this.
    events_ns: list[tuple[int, int]] = field(default_factory=list)  # Begin and end of each event.
    dispatch_cpu_ns: list[int] = field(default_factory=list)  # CPU time of each choice of a worker.


class FleetSession:
    """The vehicles of one run, and the threads that they share."""

    def __init__(self, settings: FleetSettings, broker: Broker, folder: Path) -> None:
        self._settings = settings
        self._broker = broker
        self._folder = folder
        self._stopped = threading.Event()
        self._finished = threading.Event()
        self._pacer = FleetPacer(self._stopped)
        self._threads = ThreadGroup(self._abort)
        replies: queue.SimpleQueue[TaggedReply] = queue.SimpleQueue()
        self._shared = FleetShared(replies, self._pacer.has_room, self._stopped, self._finished, WorkerClocks())
        self._vehicles: list[FleetVehicle] = []

    def run(
        self, pool: WorkerPool, events: Sequence[FleetEvent] = (), on_progress: Callable[[float], None] = lambda _: None
    ) -> FleetTimes:
        """Runs to the end; `on_progress` receives the seconds since the first frame.

        Raises:
            SkylaneError: a vehicle could not connect, or lost its connection for good.
        """
        raise_file_limit()
        times = FleetTimes(self._folder)
        with ExitStack() as stack:
            self._connect(stack)
            nodes = {FLEET_NODE: os.getpid(), **{f"worker/{name}": pid for name, pid in pool.pids.items()}}
            if self._broker.pid is not None:
                nodes[BROKER_NODE] = self._broker.pid
            stack.enter_context(ResourceSampler(self._folder / RESOURCES_NAME, nodes, interval_s=_SAMPLE_INTERVAL_S))
            try:
                self._start()
                self._play(times, events, on_progress)
            finally:
                self._stopped.set()
                self._finished.set()
                self._threads.join(_JOIN_TIMEOUT_S)
                for vehicle in self._vehicles:
                    vehicle.end()
                    if vehicle.dispatcher is not None:
                        times.dispatch_cpu_ns += vehicle.dispatcher.cpu_ns
        return times

    def _connect(self, stack: ExitStack) -> None:
        self._folder.mkdir(parents=True)
        settings = self._settings
        configs = [settings.config(number, self._broker.url) for number in range(1, settings.vehicles + 1)]
        self._vehicles = [
            FleetVehicle(config, self._folder / config.vehicle, self._shared, stack) for config in configs
        ]
        first = self._vehicles[0]
        image = EncodedImage.noise(first.card, configs[0], settings.seed)
        manifest = first.new_manifest(image)
        for vehicle in self._vehicles:
            vehicle.prepare(image, manifest)

    def _start(self) -> None:
        start = self._threads.start
        start("fleet-receiver", self._receive)
        if self._settings.retry:
            start("fleet-retrier", self._retry)
        probe = self._vehicles[0].transport.probe_clocks
        start("fleet-clocks", partial(probe, self._shared.clocks, self._finished))

    def _play(self, times: FleetTimes, events: Sequence[FleetEvent], on_progress: Callable[[float], None]) -> None:
        settings = self._settings
        self._stopped.wait(_SETTLE_S)
        due = schedules(settings.arrivals, settings.vehicles, settings.rate_hz, settings.seed)
        times.begin_ns = clock.now_ns()
        pacing = self._threads.start("fleet-pacer", partial(self._pacer.run, self._vehicles, due, settings.seconds))
        waiting = sorted(events, key=lambda event: event.at_s)
        spent_ns = 0  # In events, which a saturated run does not count: a worker may take seconds to start.
        while (elapsed_s := (clock.now_ns() - times.begin_ns - spent_ns) / 1e9) < settings.seconds:
            on_progress(elapsed_s)
            if waiting and waiting[0].at_s <= elapsed_s:
                began_ns = clock.now_ns()
                waiting.pop(0).do()
                times.events_ns.append((began_ns, clock.now_ns()))
                spent_ns += 0 if due else clock.now_ns() - began_ns
                continue
            until_s = min([settings.seconds, *(event.at_s for event in waiting[:1])])
            if self._stopped.wait(min(_POLL_S, until_s - elapsed_s)):
                break
        times.end_ns = clock.now_ns()
        if due:
            times.end_ns = times.begin_ns + round(settings.seconds * 1e9)
            pacing.join(
                _JOIN_TIMEOUT_S
            )  # A busy machine sends the last frames late; what is not sent by then is dropped.
        self._stopped.set()
        pacing.join(_JOIN_TIMEOUT_S)
        for vehicle in self._vehicles:
            vehicle.ledger.wait_until_idle(max(0.0, settings.answer_timeout_s - (clock.now_ns() - times.end_ns) / 1e9))
        for vehicle in self._vehicles:
            vehicle.check()

    def _receive(self) -> None:
        """Processes the replies of all vehicles; the body of a thread."""
        checked_ns = clock.now_ns()
        while not self._finished.is_set():
            try:
                vehicle, reply = self._shared.replies.get(timeout=_POLL_S)
            except queue.Empty:
                processed_ns = clock.now_ns()
            else:
                vehicle.receiver.process(reply)
                processed_ns = reply.returned_ns
            if processed_ns - checked_ns > _POLL_S * 1e9:
                checked_ns = processed_ns
                for each in self._vehicles:
                    each.ledger.close_timed_out(processed_ns)

    def _retry(self) -> None:
        """Sends the retries of all vehicles; the body of a thread."""
        workers = self._vehicles[0].transport.workers
        last_failure_ns = workers.last_failure_ns()
        while not self._finished.is_set():
            wait_s = min([_RETRY_INTERVAL_S, *(vehicle.retry_due() for vehicle in self._vehicles)])
            last_failure_ns = workers.last_failure_ns(after_ns=last_failure_ns, timeout_s=wait_s)

    def _abort(self) -> None:
        self._stopped.set()
        self._finished.set()
