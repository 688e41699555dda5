"""The worker processes of a fleet, each with an engine that takes a fixed time."""

import itertools
import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings

MODEL = "fleet"
SIDE = 100  # Pixels; an uncompressed image has 30 kB.
_STARTS_AT_A_TIME = 2  # Processes that import at the same time; more would only compete for the cores.


@dataclass(frozen=True, slots=True)
class FleetWorker:
    """A running worker."""

    name: str
    service_ms: float
    process: NullWorkerProcess


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Workers that serve the same model; those that still run are stopped when the block ends."""

    def __init__(self, broker: str, folder: Path, services_ms: Sequence[float]) -> None:
        """Starts a worker for each of the inference times and waits until all are ready.

        Raises:
            BenchError: a worker ended before it was ready.
        """
        self._broker = broker
        self._folder = folder
        self._numbers = itertools.count(1)
        self._stack = ExitStack()
        self.running: dict[str, FleetWorker] = {}
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with ThreadPoolExecutor(_STARTS_AT_A_TIME) as threads:
                list(threads.map(self.start, services_ms))
        except BaseException:
            self._stack.close()
            raise
        self.running = dict(sorted(self.running.items()))

    @property
    def pids(self) -> Mapping[str, int]:
        """The process ids of the running workers by their names."""
        return {name: worker.process.pid for name, worker in self.running.items()}

    @property
    def services_ms(self) -> Mapping[str, float]:
        """The inference times of the running workers by their names."""
        return {name: worker.service_ms for name, worker in self.running.items()}

    def start(self, service_ms: float) -> FleetWorker:
        """Starts one more worker and returns it when it is ready.

        Raises:
            BenchError: it ended before it was ready.
        """
        name = f"worker-{next(self._numbers)}"
        settings = NullWorkerSettings(worker=name, model=MODEL, height=SIDE, width=SIDE, think_ms=service_ms)
        process = NullWorkerProcess(self._broker, settings, log=self._folder / f"{name}.log")
        worker = FleetWorker(name, service_ms, self._stack.enter_context(process))
        self.running[name] = worker
        return worker

    def kill(self, name: str) -> None:
        """Ends a worker by SIGKILL, so that the frames that it holds are lost."""
        os.kill(self.running.pop(name).process.pid, signal.SIGKILL)

    def stop(self, name: str) -> None:
        """Ends a worker in order and waits for it."""
        self.running.pop(name).process.drain()

    def __exit__(self, *_: object) -> None:
        self._stack.close()
