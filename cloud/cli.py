"""`skylane cloud`: the cloud node."""

import os
import signal
import socket
import sys
import uuid
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from cloud.config import CloudConfig, connection_of, gateway_settings
from cloud.control_cli import control
from cloud.engines.engine import AUTO, ENGINES, Placement, Precision
from cloud.frame_log import Summary
from cloud.frontends.mqtt import worker_will
from cloud.gateway.gateway import check
from cloud.isolation.engine import Limits
from cloud.models.loader import Loader
from cloud.models.model import Model
from cloud.models.repository import Repository, default_root
from cloud.node import CloudNode, WorkerSettings
from cloud.replicas import Replicas, stop_with_parent
from cloud.thread_budget import warn_if_pids_limit_is_low
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.flags import number, override
from shared.log_lines import READY
from shared.logs import LogFormat, RateLimitedLogger, configure_logging, get_logger, log_options
from shared.messages.topics import sanitize_name
from shared.mqtt.bus import Bus, MemoryBus
from shared.mqtt.name_guard import client_id
from shared.network.broker_options import broker_options
from shared.resources.sampler import ResourceSampler
from shared.runtime.health_file import health_file_option
from shared.runtime.processes import on_termination_signals

_number = partial(number, CloudConfig)

_LOG = get_logger("cloud")
_WAITING = RateLimitedLogger(_LOG)


class NothingServedError(SkylaneError):
    """No model of the repository can be loaded."""


@click.group()
def cloud() -> None:
    """The cloud node: answer frames with masks."""


cloud.add_command(control)


@cloud.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML file; flags win over it.",
)
@broker_options
@click.option("--models", "repository", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Serve this model; again for more. One that cannot be loaded ends the start; of a whole repository the others "
    "are served. [all of the repository]",
)
@click.option("--device", help="auto, cpu or gpu:N. [auto]")
@click.option(
    "--engine",
    type=click.Choice([AUTO, *ENGINES]),
    help="What runs the models; auto: the fastest here whose labels agree. [as the model's manifest says]",
)
@click.option(
    "--precision",
    type=click.Choice([precision.value for precision in Precision]),
    help="What is computed in. [as the model's manifest says]",
)
@click.option("--threads", type=_number("threads"), help="Within an operation. [as the engine chooses]")
@click.option("--isolate", is_flag=True, default=None, help="Run each engine in a process of its own.")
@click.option(
    "--isolate-hang-s", type=_number("isolate_hang_s"), help="Replace that process when a batch takes longer. [10]"
)
@click.option(
    "--isolate-start-s",
    type=_number("isolate_start_s"),
    help="Give it up when it takes longer to open the model. [180]",
)
@click.option(
    "--isolate-memory-mb", type=_number("isolate_memory_mb"), help="What its data may take, MiB. [what the machine has]"
)
@click.option("--replicas", type=_number("replicas"), help="Worker processes on this host, NAME-1 and so on. [1]")
@click.option(
    "--worker",
    metavar="NAME",
    help="This worker's name. [the host's, with the process number]",
)
@click.option("--group", metavar="NAME", help="Workers of one group share the frames. [skylane]")
@click.option("--qos", type=_number("qos"), help="Of frames and masks. [1]")
@click.option(
    "--max-frames", type=_number("max_frames"), help="Frames that may wait; more are answered `overloaded`. [64]"
)
@click.option("--max-bytes", type=_number("max_bytes"), help="Bytes of frames that may wait, the same way. [268435456]")
@click.option(
    "--max-pixels", type=_number("max_pixels"), help="Of one picture; what is larger is `rejected`. [33554432]"
)
@click.option("--max-wait-ms", type=_number("max_wait_ms"), help="How long a batch may wait for more frames. [0]")
@click.option(
    "--max-batch", type=_number("max_batch"), help="Frames inferred together at most. [as the model's manifest says]"
)
@click.option(
    "--instances",
    type=_number("instances"),
    help="Batches that a model infers at a time. [2 by TensorFlow on several cores, else 1]",
)
@click.option(
    "--warm-up",
    "warm_up_runs",
    type=_number("warm_up_runs"),
    help="Runs before ready; 0 leaves it cold. [as the manifest says]",
)
@click.option("--decoders", type=_number("decoders"), help="Decoding threads. [1]")
@click.option("--encoders", type=_number("encoders"), help="Threads that make results and encode them. [1]")
@health_file_option
@click.option("--control/--no-control", default=None, help="Let operators load and unload models. [yes]")
@click.option("--operator", "operators", multiple=True, help="Who may; again for more. [whom the broker lets through]")
@click.option("--http", help="HOST:PORT of REST: TensorFlow Serving's, the Open Inference Protocol, pictures. [none]")
@click.option(
    "--grpc", help="HOST:PORT of gRPC: Skylane's own, TensorFlow Serving's, the Open Inference Protocol. [none]"
)
@click.option("--no-broker", is_flag=True, default=None, help="Answer at those doors alone.")
@click.option("--gateway-tls-cert", type=click.Path(dir_okay=False, path_type=Path), help="PEM, for those doors.")
@click.option("--gateway-tls-key", type=click.Path(dir_okay=False, path_type=Path), help="PEM, of that certificate.")
@click.option(
    "--tokens", type=click.Path(dir_okay=False, path_type=Path), help="Who may call: a NAME TOKEN a line. [anyone]"
)
@click.option(
    "--images", type=click.Path(file_okay=False, path_type=Path), help="What /api/detect reads by path. [nothing]"
)
@click.option("--origin", "origins", multiple=True, help="Web pages from here may call (CORS); again for more. [none]")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    help="A name by which HTTP callers may address it, beside IP addresses and localhost; again for more. [none]",
)
@click.option(
    "--max-message-bytes",
    type=_number("max_message_bytes"),
    help="Of one call at those doors, and of its answer. [134217728]",
)
@click.option(
    "--max-calls", type=_number("max_calls"), help="Answered at those doors at a time; more are refused. [256]"
)
@click.option("--supervised", is_flag=True, hidden=True, help="Drain when the standard input ends.")
@click.option(
    "--resources",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Sample CPU, memory, bytes and GPU of this worker into this CSV file, once a second.",
)
@log_options
def serve(config: Path | None, resources: Path | None, *, supervised: bool, **flags: Any) -> None:
    """Subscribe to frames, run the models and answer, until Ctrl-C, SIGTERM or SIGHUP; then drain."""
    settings = override(read_yaml(config, CloudConfig) if config else CloudConfig(), flags)
    worker = settings.worker or sanitize_name(f"{socket.gethostname()}-{os.getpid()}")
    configure_logging(
        level=settings.log_level, log_format=settings.log_format, context={"node": "cloud", "worker": worker}
    )
    try:
        _serve(settings, worker, resources, supervised=supervised)
    except click.ClickException:
        raise
    except Exception as error:
        if settings.log_format != LogFormat.JSON:
            raise
        # A log collector takes no other line than JSON.
        _LOG.error("ended by an error", reason=str(error), exc_info=not isinstance(error, SkylaneError))
        sys.exit(1)


def _serve(settings: CloudConfig, worker: str, resources: Path | None, *, supervised: bool) -> None:
    gateway = gateway_settings(settings)
    if settings.replicas > 1:
        if gateway is not None:
            check(gateway)
        _supervise(settings, worker, resources)
        return
    if supervised:
        stop_with_parent()
    _LOG.info(
        "starting",
        version=_version(),
        models=", ".join(settings.models) or "all",
        engine=settings.engine or "as each manifest says",
        device=settings.device,
        pid=os.getpid(),
    )
    if gateway is not None:
        check(gateway)
    session = uuid.uuid4().hex[:12]
    loader = _loader(settings)
    warn_if_pids_limit_is_low(settings, len(settings.models or loader.repository.names()))
    node = CloudNode(
        (),
        WorkerSettings(
            worker=worker,
            session=session,
            group=settings.group,
            qos=settings.qos,
            max_frames=settings.max_frames,
            max_bytes=settings.max_bytes,
            max_pixels=settings.max_pixels,
            decoders=settings.decoders,
            encoders=settings.encoders,
            max_wait_ms=settings.max_wait_ms,
            takes_control=settings.control,
            operators=settings.operators,
            gateway=gateway,
            health_file=settings.health_file,
        ),
        loader=loader,
    )
    node.bind()  # A taken port must not be found only when the models have been loaded, which takes minutes.
    on_termination_signals(lambda *_: sys.exit(0))
    try:
        node.add(_loaded(loader, settings.models))
    except SystemExit:
        _LOG.info("stopped", reason="asked to stop before it was ready")
        raise
    sampler = ResourceSampler(resources, {f"worker/{worker}": os.getpid()}) if resources else None
    with sampler or nullcontext():
        _answer(node, settings, worker, session, sampler)
    _LOG.info("stopped", **dict(sorted(node.counts.items())))
    for line in sampler.told() if sampler else ():
        _LOG.info("resources used", usage=line)


def _supervise(settings: CloudConfig, worker: str, resources: Path | None) -> None:
    replicas = Replicas(settings, worker, resources)
    on_termination_signals(lambda *_: replicas.stop())
    replicas.run()
    _LOG.info("stopped")


def _answer(node: CloudNode, settings: CloudConfig, worker: str, session: str, sampler: ResourceSampler | None) -> None:
    on_termination_signals(lambda *_: node.stop())
    bus = MemoryBus() if settings.no_broker else _connected(node, settings, worker, session)
    summary = Summary()
    sampled: dict[str, int] = {}

    def look() -> None:
        """Samples the processes of isolated engines too, new ones as well, and logs the summary when it is due."""
        if sampler:
            for engine, pid in node.engine_processes.items():
                if sampled.get(engine) != pid:
                    sampled[engine] = pid
                    sampler.watch(f"worker/{worker}/{engine}", pid)
        summary.look(node.counts)

    node.serve(bus, look, lambda: _LOG.info(READY, **{f"{kind}_port": port for kind, port in node.ports.items()}))
    on_termination_signals(signal.SIG_IGN)  # It has drained: being asked again must not spoil how it ends.


def _connected(node: CloudNode, settings: CloudConfig, worker: str, session: str) -> Bus:
    return connection_of(settings).open(
        client_id("worker", worker),
        worker_will(worker, session),
        name=worker,
        on_connected=node.announce,
        on_fault=node.fault,
        on_waiting=lambda reason: _WAITING.warning(reason, "no connection to the broker", reason=reason),
    )


def _loader(settings: CloudConfig) -> Loader:
    return Loader(
        repository=Repository(settings.repository or default_root()),
        placement=Placement(
            device=settings.device,
            intra_threads=settings.threads,
            precision=settings.precision,
            instances=settings.instances,
        ),
        max_batch=settings.max_batch,
        warm_up_runs=settings.warm_up_runs,
        engine=settings.engine,
        isolated=settings.isolate,
        limits=Limits(
            settings.isolate_hang_s,
            settings.isolate_start_s,
            None if settings.isolate_memory_mb is None else settings.isolate_memory_mb << 20,
        ),
    )


def _loaded(loader: Loader, wanted: Sequence[str]) -> list[Model]:
    """Loads the wanted models, all of which must load, or those of the repository that can be loaded."""
    if wanted:
        return [loader.load(name) for name in wanted]
    root = loader.repository.root
    names = loader.repository.names()
    if not names:
        raise click.UsageError(f"repository {root} holds no model: run 'skylane model build road-small'")
    models = []
    for name in names:
        with suppress(Exception):  # The loader has logged it; one bad model must not keep the others away.
            models.append(loader.load(name))
    if not models:
        reasons = "; ".join(f"{name}: {reason}" for (name, _), reason in loader.problems.items())
        raise NothingServedError(f"no model of repository {root} can be served: {reasons}")
    return models


def _version() -> str:
    try:
        return version("skylane")
    except PackageNotFoundError:
        return "unknown"  # It runs from its sources, not installed.
