"""A session: a broker and the workers of one setup, which serve one run after the other."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from bench.link.link import Link, LinkSpec
from bench.load.gateway_deployment import MQTT
from bench.load.worker_process import Worker
from bench.study.execution.fleet import Fleet, RunError
from bench.study.execution.gateway_addresses import HOST, Doors, are_wanted
from bench.study.plan.axes import NamedLink, quality
from bench.study.plan.cell import Cell, WorkerSetup
from bench.study.plan.sample_drives import footage
from bench.study.plan.scenarios import SCENARIOS, Load
from bench.study.plan.study_plan import Plan, cells
from bench.study.plan.variants import Variants
from shared.broker.broker import Broker
from shared.resources.sampler import ResourceSampler

RESOURCES = "resources.csv"
_SAMPLE_S = 0.25  # Short runs have to be seen as well.


class Session(Protocol):
    """What plays runs; the real one below, and simulated ones in tests."""

    def play(self, cell: Cell, load: Load, folder: Path) -> None:
        """Let `load.vehicles` vehicles play, each into a run folder `folder/vehicle-N`.

        Raises:
            SkylaneError: a vehicle or a worker failed, or the run took too long.
        """

    @property
    def broker(self) -> str:
        """Which broker stands between."""


Opener = AbstractContextManager[Session]


class RealSession:
    """Real processes: Mosquitto, workers, and for each run its link and its vehicles."""

    def __init__(
        self,
        plan: Plan,
        broker: Broker,
        workers: Sequence[Worker],
        doors: Sequence[Doors],
        *,
        model: str,
        logs: Path,
    ) -> None:
        """`doors`: of each worker; empty where they have none but the broker."""
        self._plan = plan
        self._logs = logs
        self._broker = broker
        self._workers = workers
        self._doors = doors
        self._model = model

    @property
    def broker(self) -> str:
        """See Session."""
        return f"{self._broker.kind.value} {self._broker.version}"

    def play(self, cell: Cell, load: Load, folder: Path) -> None:
        """See Session."""
        scenario = SCENARIOS[cell.scenario]
        source = footage(scenario.footage, cell.resolution, self._plan.drive_frames)
        folder.mkdir(parents=True, exist_ok=True)
        nodes = {f"worker/{worker.name}": worker.pid for worker in self._workers} | {"broker": self._broker.pid}
        with ExitStack() as stack:
            listeners = self._listeners(cell.transport)
            if cell.link.is_felt:
                ((host, port),) = listeners
                link = stack.enter_context(Link(_spec(cell.link, load.seed), host, port))
                nodes["link"] = link.pid
                listeners = [(link.host, link.port)]
            codec, jpeg = quality(cell.codec)
            flags = _way(cell.transport, listeners)
            flags += ["--model", self._model, "--codec", codec, "--loop", "--frames", str(load.frames)]
            flags += [] if jpeg is None else ["--quality", str(jpeg)]
            each = [[*flags, *scenario.flags(load.of_vehicle(number))] for number in range(load.vehicles)]
            fleet = stack.enter_context(Fleet(load.vehicles, source, folder, each))
            nodes |= {f"vehicle/{name}": pid for name, pid in fleet.pids.items()}
            stack.callback(self._keep_logs, folder)
            stack.enter_context(ResourceSampler(folder / RESOURCES, nodes, interval_s=_SAMPLE_S))
            fleet.wait(self._plan.run_limit_s, self._check)

    def _keep_logs(self, folder: Path) -> None:
        for worker in self._workers:
            shutil.copy(self._logs / f"{worker.name}.log", folder)

    def _check(self) -> None:
        for worker in self._workers:
            if not worker.is_running:
                raise RunError(f"{worker.name} ended while it was needed: {worker.log_tail}")
        if self._broker.wait(0) is not None:
            raise RunError(f"the broker ended while it was needed: {self._broker.log_tail()}")

    def _listeners(self, transport: str) -> list[tuple[str, int]]:
        """Hosts and ports at which a vehicle may come in."""
        if transport == MQTT:
            return [(self._broker.listener.host, self._broker.listener.port)]
        return [(HOST, doors.port(transport)) for doors in self._doors]


def _spec(link: NamedLink, seed: int) -> LinkSpec:
    return link.spec.model_copy(update={"seed": link.seed or seed})


def _way(transport: str, listeners: Sequence[tuple[str, int]]) -> list[str]:
    """The flags of `skylane edge play` that say by which way, and to whom."""
    if transport == MQTT:
        ((host, port),) = listeners
        return ["--broker", f"mqtt://{host}:{port}"]
    addresses = [flag for host, port in listeners for flag in ("--worker-address", f"{host}:{port}")]
    return ["--transport", transport, *addresses]


@contextmanager
def session(plan: Plan, setup: WorkerSetup, variants: Variants, logs: Path) -> Iterator[Session]:
    """Start a broker and the workers of a setup; the folder `logs` takes what the workers say, and each run a copy.

    Raises:
        SkylaneError: the model cannot be had, or broker or worker do not start.
    """
    variant = variants.find(setup)
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker.start())
        doors = Doors.free(setup.workers) if are_wanted(setup, cells(plan)) else []
        workers = [
            stack.enter_context(
                Worker(
                    broker.url,
                    models=variant.root,
                    model=variant.name,
                    name=f"worker-{number + 1}",
                    device=setup.device,
                    engine=setup.engine,
                    precision=setup.precision,
                    warm_up=0 if setup.cold else None,
                    max_batch=setup.batch,
                    flags=doors[number].flags if doors else (),
                    log=logs / f"worker-{number + 1}.log",
                )
            )
            for number in range(setup.workers)
        ]
        yield RealSession(plan, broker, workers, doors, model=variant.name, logs=logs)
