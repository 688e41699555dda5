"""`skylane cloud`: the command line of the cloud node."""

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

from cloud.config import CloudConfig, broker_connection, gateway_settings
from cloud.control_cli import control
from cloud.engines.placement import Placement, Precision
from cloud.engines.table import AUTO, ENGINES
from cloud.frame_log import CountSummary
from cloud.frontends.mqtt import worker_will
from cloud.gateway.gateway import check_settings
from cloud.isolation.engine import IsolationLimits
from cloud.models.loader import ModelLoader
from cloud.models.model import Model
from cloud.models.repository import Repository, default_root
from cloud.node import CloudNode, WorkerSettings
from cloud.replicas import Replicas, stop_with_parent
from cloud.thread_budget import warn_if_pids_limit_is_low
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.flags import GroupedCommand, number, option_group, override
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
    """The cloud node: runs models on frames and replies with their results."""


cloud.add_command(control)


@cloud.command(cls=GroupedCommand)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML file with settings; flags override it.",
)
@option_group(
    "Models",
    click.option(
        "--model",
        "models",
        multiple=True,
        help="Model to serve (repeatable). If one of them cannot be loaded, the worker does not start; without this option, it "
        "serves all models of the repository that can be loaded.",
    ),
    click.option(
        "--models", "repository", type=click.Path(file_okay=False, path_type=Path), help="The model repository."
    ),
    click.option("--device", help="Device of the models: auto, cpu or gpu:N. [auto]"),
    click.option(
        "--engine",
        type=click.Choice([AUTO, *ENGINES]),
        help="Engine that runs the models; auto: the fastest on this host with the same labels. [from the model's manifest]",
    ),
    click.option(
        "--precision",
        type=click.Choice([precision.value for precision in Precision]),
        help="Precision of the computation. [from the model's manifest]",
    ),
    click.option(
        "--warm-up",
        "warm_up_runs",
        type=_number("warm_up_runs"),
        help="Warm-up runs before the worker is ready. [from the model's manifest]",
    ),
)
@option_group(
    "Connection",
    click.option(
        "--worker",
        metavar="NAME",
        help="Name of this worker. [host name and process id]",
    ),
    broker_options,
    click.option("--group", metavar="NAME", help="Group of workers that share the frames. [skylane]"),
    click.option("--qos", type=_number("qos"), help="MQTT quality of service of frames and masks. [1]"),
    click.option("--no-broker", is_flag=True, default=None, help="Serve only the gateway, without a broker."),
)
@option_group(
    "Gateway",
    click.option(
        "--http", help="HOST:PORT of the HTTP gateway: TensorFlow Serving, Open Inference Protocol, images. [none]"
    ),
    click.option(
        "--grpc", help="HOST:PORT of the gRPC gateway: Skylane, TensorFlow Serving, Open Inference Protocol. [none]"
    ),
    click.option(
        "--gateway-tls-cert", type=click.Path(dir_okay=False, path_type=Path), help="Certificate of the gateway (PEM)."
    ),
    click.option(
        "--gateway-tls-key",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Private key of that certificate (PEM).",
    ),
    click.option(
        "--tokens",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File of the clients that may call the gateway, one NAME TOKEN per line. [anyone]",
    ),
    click.option(
        "--images",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder from which /api/detect reads images by path. [none]",
    ),
    click.option(
        "--origin",
        "origins",
        multiple=True,
        help="Origin of web pages that may call the gateway, for CORS (repeatable). [none]",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        help="Host name that HTTP clients may use, besides IP addresses and localhost (repeatable). [none]",
    ),
    click.option(
        "--max-message-bytes",
        type=_number("max_message_bytes"),
        help="Bytes of a call to the gateway, and of its reply. [134217728]",
    ),
    click.option(
        "--max-calls",
        type=_number("max_calls"),
        help="Concurrent calls to the gateway; further ones are refused. [256]",
    ),
)
@option_group(
    "Queue and batching",
    click.option(
        "--max-frames",
        type=_number("max_frames"),
        help="Frames that may wait; further ones are refused as `overloaded`. [64]",
    ),
    click.option("--max-bytes", type=_number("max_bytes"), help="Bytes of frames that may wait. [268435456]"),
    click.option(
        "--max-pixels", type=_number("max_pixels"), help="Pixels of an image; larger ones are `rejected`. [33554432]"
    ),
    click.option(
        "--max-batch", type=_number("max_batch"), help="Frames in a batch at most. [from the model's manifest]"
    ),
    click.option(
        "--max-wait-ms", type=_number("max_wait_ms"), help="Milliseconds that a batch may wait for more frames. [0]"
    ),
    click.option(
        "--instances",
        type=_number("instances"),
        help="Batches that a model infers at the same time. [2 with TensorFlow on several cores, else 1]",
    ),
)
@option_group(
    "Operation",
    click.option(
        "--replicas",
        type=_number("replicas"),
        help="Number of worker processes on this host, named NAME-1, NAME-2, … [1]",
    ),
    click.option(
        "--control/--no-control", default=None, help="Let operators load and unload models over the broker. [yes]"
    ),
    click.option(
        "--operator",
        "operators",
        multiple=True,
        help="Operator allowed to load and unload models (repeatable). [all that the broker admits]",
    ),
    health_file_option,
    click.option(
        "--resources",
        type=click.Path(dir_okay=False, path_type=Path),
        help="CSV file to which CPU, memory, network and GPU use of this worker is written once a second.",
    ),
    log_options,
)
@option_group(
    "Advanced",
    click.option("--threads", type=_number("threads"), help="Threads within an operation. [chosen by the engine]"),
    click.option("--decoders", type=_number("decoders"), help="Decoding threads. [1]"),
    click.option(
        "--encoders", type=_number("encoders"), help="Postprocessing threads, which make and encode results. [1]"
    ),
    click.option("--isolate", is_flag=True, default=None, help="Run each engine in a separate process."),
    click.option(
        "--isolate-hang-s",
        type=_number("isolate_hang_s"),
        help="Seconds after which the process of a hanging batch is replaced. [10]",
    ),
    click.option(
        "--isolate-start-s",
        type=_number("isolate_start_s"),
        help="Seconds that opening a model in that process may take. [180]",
    ),
    click.option(
        "--isolate-memory-mb",
        type=_number("isolate_memory_mb"),
        help="Memory limit of the data of that process in MiB. [no limit]",
    ),
)
@click.option("--supervised", is_flag=True, hidden=True, help="Drain and stop when the standard input ends.")
def serve(config: Path | None, resources: Path | None, *, supervised: bool, **flags: Any) -> None:
    """Serve models until Ctrl-C, SIGTERM or SIGHUP; accepted frames are finished first."""
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
        # A log collector can parse only JSON lines.
        _LOG.error("ended by an error", reason=str(error), exc_info=not isinstance(error, SkylaneError))
        sys.exit(1)


def _serve(settings: CloudConfig, worker: str, resources: Path | None, *, supervised: bool) -> None:
    gateway = gateway_settings(settings)
    if settings.replicas > 1:
        if gateway is not None:
            check_settings(gateway)
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
        check_settings(gateway)
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
    node.bind()  # A port in use must be reported before the models are loaded, which takes minutes.
    on_termination_signals(lambda *_: sys.exit(0))
    try:
        node.add(_loaded(loader, settings.models))
    except SystemExit:
        _LOG.info("stopped", reason="asked to stop before it was ready")
        raise
    sampler = ResourceSampler(resources, {f"worker/{worker}": os.getpid()}) if resources else None
    with sampler or nullcontext():
        _run(node, settings, worker, session, sampler)
    _LOG.info("stopped", **dict(sorted(node.counts.items())))
    for line in sampler.report_lines() if sampler else ():
        _LOG.info("resources used", usage=line)


def _supervise(settings: CloudConfig, worker: str, resources: Path | None) -> None:
    replicas = Replicas(settings, worker, resources)
    on_termination_signals(lambda *_: replicas.stop())
    replicas.run()
    _LOG.info("stopped")


def _run(node: CloudNode, settings: CloudConfig, worker: str, session: str, sampler: ResourceSampler | None) -> None:
    on_termination_signals(lambda *_: node.stop())
    bus = MemoryBus() if settings.no_broker else _connected(node, settings, worker, session)
    summary = CountSummary()
    sampled: dict[str, int] = {}

    def on_tick() -> None:
        """Adds new processes of isolated engines to the sampler, and logs the summary."""
        if sampler:
            for engine, pid in node.engine_processes.items():
                if sampled.get(engine) != pid:
                    sampled[engine] = pid
                    sampler.watch(f"worker/{worker}/{engine}", pid)
        summary.update(node.counts)

    node.serve(bus, on_tick, lambda: _LOG.info(READY, **{f"{kind}_port": port for kind, port in node.ports.items()}))
    on_termination_signals(signal.SIG_IGN)  # A second signal must not change the exit code of a drained worker.


def _connected(node: CloudNode, settings: CloudConfig, worker: str, session: str) -> Bus:
    return broker_connection(settings).open(
        client_id("worker", worker),
        worker_will(worker, session),
        name=worker,
        on_connected=node.announce,
        on_fault=node.fault,
        on_waiting=lambda reason: _WAITING.warning(reason, "no connection to the broker", reason=reason),
    )


def _loader(settings: CloudConfig) -> ModelLoader:
    return ModelLoader(
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
        isolation=IsolationLimits(
            settings.isolate_hang_s,
            settings.isolate_start_s,
            None if settings.isolate_memory_mb is None else settings.isolate_memory_mb << 20,
        )
        if settings.isolate
        else None,
    )


def _loaded(loader: ModelLoader, wanted: Sequence[str]) -> list[Model]:
    """Loads all named models, or without names all models of the repository that can be loaded."""
    if wanted:
        return [loader.load(loader.find(name)) for name in wanted]
    root = loader.repository.root
    names = loader.repository.names()
    if not names:
        raise click.UsageError(f"repository {root} has no models: run 'skylane model build road-small'")
    models = []
    for name in names:
        with suppress(Exception):  # The loader has logged the error; the other models are served.
            models.append(loader.load(loader.find(name)))
    if not models:
        reasons = "; ".join(f"{name}: {reason}" for (name, _), reason in loader.problems.items())
        raise NothingServedError(f"no model of repository {root} can be served: {reasons}")
    return models


def _version() -> str:
    try:
        return version("skylane")
    except PackageNotFoundError:
        return "unknown"  # The package is not installed.
