"""The deployment of the soak test: a broker, workers, and vehicles behind links, restarted when they end."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from analysis.logs.frame_accounting import FrameAccounts
from ops.broker.broker import Broker
from ops.link.link import Link
from ops.processes.null_worker import NullWorkerProcess
from ops.processes.vehicle_process import VehicleProcess
from shared.errors import SkylaneError
from shared.runlog.latency_log import Outcome
from tests.support.faults.rig import Rig, kill, vehicle_truth
from tests.support.process_log import ProcessLog

_THINK_MS = 60.0  # Time of an answer, so that frames are in flight during every fault.
_PICTURES = 200
_DEADLINE_MS = 1500.0
_ENDING_S = 60.0


class Site:
    """Starts and restarts the nodes of a soak test and keeps the run folder of every vehicle process.

    Vehicles and workers are named by role and number; a restarted one keeps the name.
    """

    def __init__(
        self,
        rig: Rig,
        log: ProcessLog,
        *,
        vehicles: int,
        workers: int,
        rate_hz: float,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Starts everything. `rate_hz` is the frame rate of each vehicle; `wait` sleeps for some seconds."""
        self.rig = rig
        self.wait = wait
        self.broken: list[str] = []  # Nodes that ended by themselves, and how.
        self._log = log
        self._rate_hz = rate_hz
        self._lives: list[tuple[VehicleProcess, bool]] = []  # Vehicles that have ended, and whether they were killed.
        self._births: Counter[str] = Counter()
        self.broker = self._opened(0)
        self.worker_names = tuple(f"worker-{each + 1}" for each in range(workers))
        self.vehicle_names = tuple(f"vehicle-{each + 1}" for each in range(vehicles))
        self.workers = {name: self._worker(name) for name in self.worker_names}
        self.links: dict[str, Link] = {}
        self.vehicles: dict[str, VehicleProcess] = {}
        for name in self.vehicle_names:
            self.links[name] = rig.link(self.broker)
            log.watch("link", f"link of {name}", self.links[name].pid)
            self.vehicles[name] = self._vehicle(name)

    def kill_broker(self, away_s: float) -> None:
        """Kills the broker and starts it again on the same port after `away_s`."""
        kill(self.broker.pid)
        self.broker.stop()
        self.wait(away_s)
        self.broker = self._opened(self.broker.listener.port)

    def kill_worker(self, name: str, away_s: float) -> None:
        """Kills a worker and starts it again after `away_s`."""
        kill(self.workers.pop(name).pid)
        self.wait(away_s)
        self.workers[name] = self._worker(name)

    def drain_worker(self, name: str, away_s: float) -> None:
        """Drains a worker and starts it again after `away_s`."""
        code = self.workers.pop(name).drain()
        if code:
            self.broken.append(f"{name} was asked to end and did with exit code {code}")
        self.wait(away_s)
        self.workers[name] = self._worker(name)

    def kill_vehicle(self, name: str, away_s: float) -> None:
        """Kills a vehicle and starts it again after `away_s`."""
        vehicle = self.vehicles.pop(name)
        kill(vehicle.pid)
        vehicle.wait()
        self._lives.append((vehicle, True))
        self.wait(away_s)
        self.vehicles[name] = self._vehicle(name)

    def tend(self) -> None:
        """Restarts missing nodes and records those that ended by themselves, which breaks a promise.

        Raises:
            SkylaneError: a node cannot be started.
        """
        for name in self.worker_names:
            if name in self.workers and not self.workers[name].is_running:
                self.broken.append(f"{name} ended by itself")
                del self.workers[name]
            if name not in self.workers:
                self.workers[name] = self._worker(name)
        for name in self.vehicle_names:
            if name in self.vehicles and not self.vehicles[name].is_running:
                vehicle = self.vehicles.pop(name)
                self.broken.append(f"{name} ended by itself with exit code {vehicle.wait()}: {vehicle.log_tail}")
                self._lives.append((vehicle, True))
            if name not in self.vehicles:
                self.vehicles[name] = self._vehicle(name)

    def end(self) -> FrameAccounts:
        """Waits until all vehicles receive answers, ends them, and returns the accounting of all frames of all lives."""
        with self.noted():
            self.rig.wait_for_frames(list(self.vehicles.values()), 10, Outcome.ANSWERED)
        for vehicle in self.vehicles.values():
            vehicle.stop()
        for vehicle in self.vehicles.values():
            with self.noted():
                vehicle.end(_ENDING_S)
            self._lives.append((vehicle, vehicle.is_running))
        accounts = FrameAccounts()
        for vehicle, was_killed in self._lives:
            with self.noted():
                accounts.add(vehicle.folder, vehicle_truth(vehicle.source, only_written=was_killed))
        return accounts

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Records an error in the block for the final report instead of ending the soak test."""
        try:
            yield
        except SkylaneError as error:
            self.broken.append(str(error))

    def _opened(self, port: int) -> Broker:
        broker = self.rig.broker(port=port)
        self._log.watch("broker", "broker", broker.pid)
        return broker

    def _worker(self, name: str) -> NullWorkerProcess:
        worker = self.rig.worker(self.broker.url, name, think_ms=_THINK_MS)
        self._log.watch("worker", name, worker.pid)
        return worker

    def _vehicle(self, name: str) -> VehicleProcess:
        self._births[name] += 1
        vehicle = self.rig.vehicle(
            self.links[name].url,
            f"{name}-life-{self._births[name]}",
            vehicle=name,
            pictures=_PICTURES,
            rate_hz=self._rate_hz,
            flags=["--loop", "--deadline-ms", f"{_DEADLINE_MS:g}", "--connect-timeout", "60"],
        )
        self._log.watch("vehicle", name, vehicle.pid)
        return vehicle
