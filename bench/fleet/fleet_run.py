"""Runs the cases of the fleet benchmark: starts workers, lets the vehicles send, and changes the workers in the middle."""

import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench.fleet.run_record import (
    BROKER_NODE,
    FLEET_NODE,
    QueueHistory,
    capacity_hz,
    read_frames,
    share_after_ms,
    summarise,
)
from bench.fleet.vehicle import VehicleGroup
from bench.harness import alternating
from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.pacing import poisson_ns, uniform_ns
from edge.pipeline import prepare
from ops.broker.broker import Broker
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from shared import clock
from shared.imaging.frames import Frame, Layout
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.resources.sampler import RESOURCES_NAME, ResourceSampler

GROUP, LOAD = "group", "load"
DISPATCHES = (LOAD, GROUP)

_MODEL = "fleet"
_SIDE = 100  # Pixels; an uncompressed image has 30 kB.
_STARTS_AT_A_TIME = 2  # Processes that import at the same time; more would only compete for the cores.
_CHANGE_AT = 0.5  # Share of the run before a worker is killed or joins.
_CONNECT_TIMEOUT_S = 60.0  # Two hundred vehicles connect one after the other to a broker that may be busy.
_ANSWER_TIMEOUT_S = 30.0
_SAMPLE_INTERVAL_S = 0.5

OnRun = Callable[[str, float, float], None]  # Description, seconds so far, and seconds of all runs.


class FleetArrivals(StrEnum):
    """The schedule of all vehicles of a fleet."""

    SATURATED = "saturated"  # Each vehicle keeps its window full.
    UNIFORM = "uniform"  # Each vehicle sends at a constant rate, from a random phase on.
    POISSON = "poisson"  # Each vehicle's frames are a Poisson process, and so are those of the fleet.


class Change(StrEnum):
    """A change of the workers in the middle of a run."""

    NONE = "none"
    KILL = "kill"  # `kill -9` of the first worker.
    JOIN = "join"  # One more worker, as fast as the first.


@dataclass(frozen=True, slots=True)
class FleetCase:
    """A load, and the workers that get it."""

    name: str
    worker_ms: tuple[float, ...]  # The inference time of each worker.
    vehicles: int
    arrivals: FleetArrivals = FleetArrivals.SATURATED
    load: float = 0.8  # Offered frames divided by the capacity of the workers; not used by saturated vehicles.
    rate_hz: float | None = None  # Frame rate of each vehicle, instead of `load`.
    window: int = 4
    seconds: float = 15.0
    dispatch: tuple[str, ...] = DISPATCHES
    change: Change = Change.NONE
    retry: bool = True

    @property
    def vehicle_hz(self) -> float:
        """The frame rate of each vehicle."""
        return self.rate_hz or self.load * capacity_hz(self.worker_ms) / self.vehicles

    def config(self, number: int, dispatch: str, broker: str) -> EdgeConfig:
        """Returns the configuration of a vehicle; `number` starts at 1."""
        return EdgeConfig(
            vehicle=f"vehicle-{number:03d}",
            broker=broker,
            model=_MODEL,
            dispatch=dispatch,
            codec="raw",
            window=self.window,
            retry=self.retry,
            answer_timeout_s=_ANSWER_TIMEOUT_S,
            connect_timeout_s=_CONNECT_TIMEOUT_S,
        )


def run_cases(
    cases: Sequence[FleetCase],
    broker: Broker,
    folder: Path,
    *,
    rounds: int,
    seed: int,
    on_run: OnRun = lambda *_: None,
) -> list[dict[str, Any]]:
    """Runs cases one after the other, each with its kinds of dispatch in turn; returns the record of every run.

    `seed`: that of the first round; each further round uses the next number.

    Raises:
        SkylaneError: a process did not start or lost its connection for good.
    """
    done_s, total_s = 0.0, sum(case.seconds * rounds * len(case.dispatch) for case in cases)
    records: list[dict[str, Any]] = []
    for case_number, case in enumerate(cases, 1):
        on_run(f"{case.name}: starting {len(case.worker_ms)} workers", done_s, total_s)
        with WorkerPool(broker.url, folder / f"workers-{case_number}") as pool:
            pool.start_all(case.worker_ms)
            for number, dispatch in alternating(case.dispatch, rounds):
                title = f"{case.name}, {dispatch}, seed {seed + number}"

                def show(elapsed_s: float, title: str = title, before_s: float = done_s) -> None:
                    on_run(title, before_s + elapsed_s, total_s)

                run = FleetRun(case, dispatch, seed + number, pool, folder / f"run-{len(records) + 1}")
                records.append(run.record(broker, show))
                done_s += case.seconds
    return records


class WorkerPool(ExitStack):
    """Workers that serve the same model, each with an engine that takes a fixed time; the running ones end with the block."""

    def __init__(self, broker: str, folder: Path) -> None:
        super().__init__()
        self._broker = broker
        self._folder = folder
        self._numbers = count(1)
        self.running: dict[str, NullWorkerProcess] = {}
        self.worker_ms: dict[str, float] = {}  # Inference times of all workers, also of those that have ended.
        folder.mkdir(parents=True)

    def start_all(self, worker_ms: Sequence[float]) -> None:
        """Starts a worker for each of the inference times, see `start`."""
        with ThreadPoolExecutor(_STARTS_AT_A_TIME) as threads:
            list(threads.map(self.start, worker_ms))
        self.running = dict(sorted(self.running.items()))

    def start(self, service_ms: float) -> str:
        """Starts one more worker and returns its name when it is ready.

        Raises:
            BenchError: it ended before it was ready.
        """
        name = f"worker-{next(self._numbers)}"
        settings = NullWorkerSettings(worker=name, model=_MODEL, height=_SIDE, width=_SIDE, think_ms=service_ms)
        process = NullWorkerProcess(self._broker, settings, log=self._folder / f"{name}.log")
        self.running[name] = self.enter_context(process)
        self.worker_ms[name] = service_ms
        return name

    def kill_first(self) -> str:
        """Ends the first worker by SIGKILL, so that the frames that it holds are lost; returns its name."""
        name = next(iter(self.running))
        os.kill(self.running.pop(name).pid, signal.SIGKILL)
        return name


class FleetRun:
    """One run of a case."""

    def __init__(self, case: FleetCase, dispatch: str, seed: int, pool: WorkerPool, folder: Path) -> None:
        self._case = case
        self._dispatch = dispatch
        self._seed = seed
        self._pool = pool
        self._folder = folder
        self._begin_ns = self._end_ns = 0  # No frame is due after the end. Times are by this process's clock.
        self._changed, self._changed_ns = "", 0  # The worker that was killed or joined, and when that was done.
        self._cpu_ns: list[int] = []  # CPU time of each choice of a worker.

    def record(self, broker: Broker, on_progress: Callable[[float], None]) -> dict[str, Any]:
        """Runs to the end and returns the JSON record; afterwards the pool has the workers of the case again.

        `on_progress` receives the seconds since the first frame.

        Raises:
            SkylaneError: a vehicle could not connect, or lost its connection for good.
        """
        case, pool = self._case, self._pool
        started_ns, workers = clock.now_ns(), tuple(pool.running)
        self._run(broker, on_progress)
        alive = {name: (pool.worker_ms[name], (started_ns, self._end_ns)) for name in workers}
        frames = read_frames(self._folder)
        change: dict[str, Any] = {}
        if case.change is Change.KILL:
            killed_ms = pool.worker_ms[self._changed]
            history = QueueHistory.of(
                frames,
                {name: life for name, life in alive.items() if name != self._changed},
                (self._changed_ns, self._end_ns),
            )
            change["balanced_after_ms"] = history.balanced_after_ms(self._changed_ns)
            alive[self._changed] = (killed_ms, (started_ns, self._changed_ns))
            pool.start(killed_ms)
        elif case.change is Change.JOIN:
            alive[self._changed] = (pool.worker_ms[self._changed], (self._changed_ns, self._end_ns))
            change["share_after_ms"] = share_after_ms(frames, self._changed, len(alive), self._changed_ns)
            pool.running.pop(self._changed).drain()
        return {
            "case": case.name,
            **summarise(
                self._settings(),
                self._folder,
                frames,
                alive,
                (self._begin_ns, self._end_ns),
                is_open=case.arrivals is not FleetArrivals.SATURATED,
            ),
            "dispatch_cpu_ms": fmean(self._cpu_ns) / 1e6 if self._cpu_ns else None,
            "change": case.change.value,
            **change,
        }

    def _settings(self) -> Mapping[str, Any]:
        names = ("vehicles", "arrivals", "window", "seconds", "retry")
        return {
            **{name: getattr(self._case, name) for name in names},
            "rate_hz": self._case.vehicle_hz,
            "seed": self._seed,
            "dispatch": self._dispatch,
            "answer_timeout_s": _ANSWER_TIMEOUT_S,
        }

    def _run(self, broker: Broker, on_progress: Callable[[float], None]) -> None:
        case = self._case
        self._folder.mkdir(parents=True)
        configs = [case.config(number, self._dispatch, broker.url) for number in range(1, case.vehicles + 1)]
        with VehicleGroup() as group:
            group.connect(configs, self._folder, lambda card: [noise(card, configs[0], self._seed)])
            nodes = {FLEET_NODE: os.getpid()}
            nodes |= {f"worker/{name}": process.pid for name, process in self._pool.running.items()}
            if broker.pid is not None:
                nodes[BROKER_NODE] = broker.pid
            group.enter_context(ResourceSampler(self._folder / RESOURCES_NAME, nodes, interval_s=_SAMPLE_INTERVAL_S))
            due = schedules(case.arrivals, case.vehicles, case.vehicle_hz, self._seed)

            def watch(elapsed_s: float) -> int:
                on_progress(elapsed_s)
                if case.change is Change.NONE or self._changed or elapsed_s < _CHANGE_AT * case.seconds:
                    return 0
                began_ns = clock.now_ns()
                is_kill = case.change is Change.KILL
                self._changed = self._pool.kill_first() if is_kill else self._pool.start(case.worker_ms[0])
                self._changed_ns = clock.now_ns()
                # A saturated run does not count this time: a worker may take seconds to start.
                return 0 if due else self._changed_ns - began_ns

            self._begin_ns, self._end_ns = group.play(due, case.seconds, watch)
        self._cpu_ns = [each for vehicle in group.vehicles if vehicle.dispatcher for each in vehicle.dispatcher.cpu_ns]


def noise(card: ModelCard, config: EdgeConfig, seed: int) -> FrameMessage:
    """Returns noise in the model's input size as the vehicles send it."""
    pixels = np.random.default_rng(seed).integers(0, 256, (card.height, card.width, 3), np.uint8)
    frame = Frame(pixels, Layout.RGB8, "front", index=0, stamp_ns=0, source_ns=0, read_ns=0)
    return prepare(frame, FrameRecord.of(FrameId("fleet", "front", "fleet", 0), "front"), card, config)


def schedules(arrivals: FleetArrivals, vehicles: int, rate_hz: float, seed: int) -> list[Iterator[int]]:
    """Returns the due times of each vehicle in nanoseconds from the begin of the run; `rate_hz`: of each vehicle.

    A seed always gives the same times. Saturated vehicles have no schedule.
    """
    if arrivals is FleetArrivals.SATURATED:
        return []
    generator = random.Random(seed)
    found: list[Iterator[int]] = []
    for _ in range(vehicles):
        # A vehicle begins somewhere in its first interval: otherwise the frames of all would be due at the same time.
        phase_ns = round(generator.random() * 1e9 / rate_hz)
        is_poisson = arrivals is FleetArrivals.POISSON
        times = poisson_ns(rate_hz, generator.getrandbits(62)) if is_poisson else uniform_ns(rate_hz)
        found.append(map(phase_ns.__add__, times))
    return found
