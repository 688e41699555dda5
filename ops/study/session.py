"""A session: the broker and workers of one setup, which serve several runs one after the other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from analysis.study.accuracy import MASK_SINK
from analysis.study.axes import (
    NONE,
    NamedLink,
    cascade_thresholds,
    codec_and_quality,
    gate_and_threshold,
    inference_times_ms,
)
from analysis.study.measurement import RunError
from analysis.study.scenarios import SCENARIOS, VehicleLoad
from analysis.study.study_plan import ReuseLimits, StudyCell, StudyPlan, WorkerSetup, cells
from edge.transports.transport import MQTT
from ops.broker.broker import Broker
from ops.link.link import Link
from ops.processes.child import cli_flags
from ops.processes.deployment import HTTP_TRANSPORTS
from ops.processes.fixed_time import answers_file
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from ops.processes.playback import PlaybackSettings
from ops.processes.worker_process import Worker
from ops.study.fleet import Fleet
from ops.study.sample_drives import source_of
from ops.study.variants import ModelVariant, ModelVariants
from shared.files import make_folder, read_file, write_file
from shared.messages.model_card import ModelCard
from shared.models.repository import Repository
from shared.network.endpoint import free_ports
from shared.network.link_spec import LinkSpec
from shared.resources.sampler import ResourceSampler

RESOURCES = "resources.csv"
_ANSWERS = Path("runs") / "answers"
_HOST = "127.0.0.1"
_SAMPLE_INTERVAL_S = 0.25  # Short enough to sample runs of a few seconds.


class Session(Protocol):
    """Plays runs; implemented by `ProcessSession` and by simulations in tests."""

    def play(self, cell: StudyCell, load: VehicleLoad, folder: Path) -> None:
        """Lets `load.vehicles` vehicles play, each into the run folder `folder/vehicle-N`.

        Raises:
            SkylaneError: A vehicle or worker failed, or the run took too long.
        """

    @property
    def broker(self) -> str:
        """Name and version of the broker."""


@dataclass(frozen=True, slots=True)
class ProcessSession:
    """A session of real processes: broker, workers, and for each run its link and vehicles."""

    plan: StudyPlan
    broker_process: Broker
    workers: Sequence[Worker | NullWorkerProcess]
    # The gateway ports of the workers for `grpc` and `http`; none without a gateway.
    ports: Mapping[str, Sequence[int]]
    card: ModelCard
    models: Path  # The repository of the vehicles' local models.
    logs: Path  # Folder of the workers' logs.

    @property
    def broker(self) -> str:
        """See Session."""
        return f"{self.broker_process.kind.value} {self.broker_process.version}"

    def play(self, cell: StudyCell, load: VehicleLoad, folder: Path) -> None:
        """See Session."""
        scenario = SCENARIOS[cell.scenario]
        source = source_of(self.plan, cell, load.drive_seed)
        folder.mkdir(parents=True, exist_ok=True)
        nodes = {f"worker/{worker.name}": worker.pid for worker in self.workers} | {"broker": self.broker_process.pid}
        with ExitStack() as stack:
            addresses = self._addresses(cell.transport)
            if cell.link.has_effect:
                ((host, port),) = addresses
                link = stack.enter_context(Link(_with_seed(cell.link, load.seed), host, port))
                nodes["link"] = link.pid
                addresses = [(link.host, link.port)]
            codec, jpeg_quality = codec_and_quality(cell.codec)
            flags = _transport_flags(cell.transport, addresses) + reuse_flags(self.plan.reuse, cell, self.models)
            flags += cli_flags(
                model=self.card.name,
                codec=codec,
                quality=jpeg_quality,
                loop=True,
                frames=load.frames,
                resize_at=cell.resize_at or scenario.resize_at,
                dispatch=cell.dispatch,
                present=None if cell.present == NONE else cell.present,
                sink=MASK_SINK if self.plan.accuracy else None,
            )
            vehicle_flags = [[*flags, *scenario.flags(load.of_vehicle(number))] for number in range(load.vehicles)]
            fleet = stack.enter_context(Fleet(load.vehicles, source, folder, vehicle_flags))
            nodes |= {f"vehicle/{name}": pid for name, pid in fleet.pids.items()}
            stack.callback(self._copy_logs, folder)
            stack.enter_context(ResourceSampler(folder / RESOURCES, nodes, interval_s=_SAMPLE_INTERVAL_S))
            fleet.wait(self.plan.run_limit_s, self._check_processes)

    def _copy_logs(self, folder: Path) -> None:
        for worker in self.workers:
            write_file(folder / f"{worker.name}.log", read_file(self.logs / f"{worker.name}.log"))

    def _check_processes(self) -> None:
        for worker in self.workers:
            if not worker.is_running:
                raise RunError(f"{worker.name} ended during the run: {worker.log_tail}")
        if self.broker_process.wait(0) is not None:
            raise RunError(f"the broker ended during the run: {self.broker_process.log_tail()}")

    def _addresses(self, transport: str) -> list[tuple[str, int]]:
        """Returns the hosts and ports to which the vehicles connect."""
        if transport == MQTT:
            return [(self.broker_process.listener.host, self.broker_process.listener.port)]
        return [(_HOST, port) for port in self.ports["http" if transport in HTTP_TRANSPORTS else "grpc"]]


def _with_seed(link: NamedLink, seed: int) -> LinkSpec:
    return link.spec.model_copy(update={"seed": link.seed or seed})


def _transport_flags(transport: str, addresses: Sequence[tuple[str, int]]) -> list[str]:
    """Returns the flags of `skylane edge play` for transport and addresses."""
    if transport == MQTT:
        ((host, port),) = addresses
        return ["--broker", f"mqtt://{host}:{port}"]
    workers = [flag for host, port in addresses for flag in ("--worker-address", f"{host}:{port}")]
    return ["--transport", transport, *workers]


def reuse_flags(limits: ReuseLimits, cell: StudyCell, models: Path) -> list[str]:
    """Returns the flags of `skylane edge play` for gate, local model and cascade; `models` has the local model."""
    flags: list[str] = []
    if gate := gate_and_threshold(cell.gate):
        flags += ["--gate", gate[0], "--gate-threshold", gate[1]]
        flags += [] if limits.frames is None else ["--reuse-frames", str(limits.frames)]
        flags += [] if limits.ms is None else ["--reuse-ms", f"{limits.ms:g}"]
    if cell.local_model != NONE:
        flags += ["--local-model", cell.local_model, "--models", str(models)]
    if cell.cascade != NONE:
        flags.append("--cascade")
    if thresholds := cascade_thresholds(cell.cascade):
        flags += ["--c-low", f"{thresholds.c_low:g}", "--c-high", f"{thresholds.c_high:g}"]
    return flags if cell.tuning is None else [*flags, "--tuning", cell.tuning]


def needs_gateway(setup: WorkerSetup, cells: Iterable[StudyCell]) -> bool:
    """Returns whether a cell of the setup uses a transport other than MQTT."""
    return any(cell.transport != MQTT for cell in cells if cell.setup == setup)


@contextmanager
def open_session(plan: StudyPlan, setup: WorkerSetup, variants: ModelVariants, logs: Path) -> Iterator[Session]:
    """Starts a broker and the workers of a setup; the workers write their output into the folder `logs`.

    Raises:
        SkylaneError: The model is not available, or the broker or a worker does not start.
    """
    variant = variants.find(setup)
    make_folder(logs, logs.parent)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker.start())
        free = free_ports(2 * setup.workers) if needs_gateway(setup, cells(plan)) else []
        ports = {"grpc": free[::2], "http": free[1::2]}
        engine = cli_flags(
            engine=variants.engine(setup),
            precision=setup.precision,
            warm_up=0 if setup.cold else None,
            max_batch=setup.batch,
        )
        times_ms: tuple[float, ...] = ()
        answers: tuple[Path, ...] = ()
        if setup.fixed_inference_ms is not None:
            times_ms = inference_times_ms(setup.fixed_inference_ms, setup.workers)
            playbacks = dict.fromkeys(_playbacks(plan, setup, variant))
            answers = tuple(answers_file(settings, _ANSWERS) for settings in playbacks)

        def start(number: int) -> Worker | NullWorkerProcess:
            name = f"worker-{number + 1}"
            endpoints = {kind: f"{_HOST}:{each[number]}" for kind, each in ports.items() if each}
            log = logs / f"{name}.log"
            if times_ms:
                settings = NullWorkerSettings(
                    name,
                    variant.name,
                    models=variant.root,
                    answers=answers,
                    think_ms=times_ms[number],
                    http=endpoints.get("http"),
                    grpc=endpoints.get("grpc"),
                )
                return stack.enter_context(NullWorkerProcess(broker.url, settings, log=log))
            flags = [*engine, *(f"--{kind}={address}" for kind, address in endpoints.items())]
            return stack.enter_context(
                Worker(
                    broker.url,
                    models=variant.root,
                    model=variant.name,
                    name=name,
                    device=setup.device,
                    flags=flags,
                    log=log,
                )
            )

        workers = [start(number) for number in range(setup.workers)]
        card = Repository(variant.root).find(variant.name).card()
        yield ProcessSession(plan, broker, workers, ports, card, variants.root, logs)


def _playbacks(plan: StudyPlan, setup: WorkerSetup, variant: ModelVariant) -> Iterator[PlaybackSettings]:
    """Yields the frames of each cell and drive, and how they are encoded."""
    for cell in cells(plan):
        if cell.setup != setup:
            continue
        codec, quality = codec_and_quality(cell.codec)
        encoding: dict[str, Any] = {"codec": codec} if quality is None else {"codec": codec, "quality": quality}
        resize_at = cell.resize_at or SCENARIOS[cell.scenario].resize_at
        for seed in plan.drive_seeds:
            bag = source_of(plan, cell, seed)
            yield PlaybackSettings(
                bag, variant.root, variant.name, frames=plan.drive_frames, resize_at=resize_at, **encoding
            )
