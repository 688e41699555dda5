"""`skylane cloud`: the cloud node."""

import os
import signal
import socket
import sys
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from cloud.config import CloudConfig, connection_of, gateway_of
from cloud.control_cli import control
from cloud.engines.engine import AUTO, ENGINES, Placement, Precision
from cloud.gateway.gateway import check
from cloud.intake import worker_will
from cloud.isolation.engine import Limits
from cloud.loader import Loader
from cloud.model import Model
from cloud.node import CloudNode, WorkerSettings
from cloud.replicas import Replicas, drain_with_parent
from cloud.repository import Repository, default_root
from shared.bus import Bus, MemoryBus
from shared.config import override, read_yaml
from shared.connection import broker_options
from shared.health_file import health_file_option
from shared.name_claim import client_id
from shared.processes import on_end_signals
from shared.resources.sampler import Sampler
from shared.topics import checked, part_of_name


@click.group()
def cloud() -> None:
    """The cloud node: answer frames with masks."""


cloud.add_command(control)


@cloud.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="A YAML file; flags win over it.")
@broker_options
@click.option("--models", "repository", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", "models", multiple=True, help="Serve this model; again for more. [all of the repository]")
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
@click.option("--threads", type=int, help="Within an operation. [as the engine chooses]")
@click.option("--isolate", is_flag=True, default=None, help="Run each engine in a process of its own.")
@click.option("--isolate-hang-s", type=float, help="Replace that process when a batch takes longer. [10]")
@click.option("--isolate-start-s", type=float, help="Give it up when it takes longer to open the model. [180]")
@click.option("--isolate-memory-mb", type=int, help="What its data may take, MiB. [what the machine has]")
@click.option("--replicas", type=int, help="Worker processes on this host, NAME-1 and so on. [1]")
@click.option("--worker", help="This worker's name. [the host's, with the process number]")
@click.option("--group", help="Workers of one group share the frames. [skylane]")
@click.option("--qos", type=click.IntRange(0, 1), help="Of frames and masks. [1]")
@click.option("--max-frames", type=int, help="Frames that may wait; more are answered `overloaded`. [64]")
@click.option("--max-bytes", type=int, help="Bytes of frames that may wait, the same way. [268435456]")
@click.option("--max-pixels", type=int, help="Of one picture; what is larger is `rejected`. [33554432]")
@click.option("--max-wait-ms", type=float, help="How long a batch may wait for more frames. [0]")
@click.option("--max-batch", type=int, help="Frames inferred together at most. [as the model's manifest says]")
@click.option(
    "--instances", type=int, help="Batches that a model infers at a time. [2 by TensorFlow on several cores, else 1]"
)
@click.option("--warm-up", "warm_up_runs", type=int, help="Runs before ready; 0 leaves it cold. [as the manifest says]")
@click.option("--decoders", type=int, help="Decoding threads. [1]")
@click.option("--encoders", type=int, help="Threads that make results and encode them. [1]")
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
@click.option("--max-message-bytes", type=int, help="Of one call at those doors, and of its answer. [134217728]")
@click.option("--max-calls", type=int, help="Answered at those doors at a time; more are refused. [256]")
@click.option("--supervised", is_flag=True, hidden=True, help="Drain when the standard input ends.")
@click.option(
    "--resources",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Sample CPU, memory, bytes and GPU of this worker into this CSV file, once a second.",
)
def serve(config: Path | None, resources: Path | None, *, supervised: bool, **flags: Any) -> None:
    """Subscribe to frames, run the models and answer, until Ctrl-C, SIGTERM or SIGHUP; then drain."""
    settings = override(read_yaml(config, CloudConfig) if config else CloudConfig(), flags)
    worker = checked("worker", settings.worker or part_of_name(f"{socket.gethostname()}-{os.getpid()}"))
    group = checked("group", settings.group)
    gateway = gateway_of(settings)
    if gateway is not None:
        check(gateway)
    if settings.replicas > 1:
        _supervise(settings, worker, resources)
        return
    if supervised:
        drain_with_parent()
    session = uuid.uuid4().hex[:12]
    loader = _loader(settings)
    node = CloudNode(
        _loaded(loader, settings.models),
        WorkerSettings(
            worker=worker,
            session=session,
            group=group,
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
    sampler = Sampler(resources, {f"worker/{worker}": os.getpid()}) if resources else None
    with sampler or nullcontext():
        _answer(node, settings, worker, session, sampler)
    _say(f"worker {worker}: drained and gone")
    for line in sampler.told() if sampler else ():
        _say(line)


def _supervise(settings: CloudConfig, worker: str, resources: Path | None) -> None:
    replicas = Replicas(settings, worker, resources, _say)
    on_end_signals(lambda *_: replicas.stop())
    replicas.run()
    _say(f"worker {worker}: all replicas drained and gone")


def _answer(node: CloudNode, settings: CloudConfig, worker: str, session: str, sampler: Sampler | None) -> None:
    on_end_signals(lambda *_: node.stop())
    bus = MemoryBus() if settings.no_broker else _connected(node, settings, worker, session)
    told: dict[str, int] = {}
    sampled: dict[str, int] = {}

    def tell() -> None:
        """One line whenever the counts have moved; and have engines' processes sampled, new ones as well."""
        if sampler:
            for engine, pid in node.engine_processes.items():
                if sampled.get(engine) != pid:
                    sampled[engine] = pid
                    sampler.watch(f"worker/{worker}/{engine}", pid)
        counts = dict(node.counts)
        if counts != told:
            told.update(counts)
            _say(" · ".join(f"{name} {count}" for name, count in sorted(counts.items())))

    def tell_ready() -> None:
        for door, port in node.ports.items():
            _say(f"worker {worker}: {door} at port {port}")
        _say(f"worker {worker}: ready")

    node.serve(bus, tell, on_ready=tell_ready)
    on_end_signals(signal.SIG_IGN)  # It has drained: being asked again must not spoil how it ends.
    tell()


def _connected(node: CloudNode, settings: CloudConfig, worker: str, session: str) -> Bus:
    bus = connection_of(settings).open(
        client_id("worker", worker),
        worker_will(worker, session),
        name=worker,
        on_connected=node.announce,
        on_fault=node.fault,
        on_waiting=_say,
    )
    _say(f"worker {worker}: connected to {settings.broker}")
    return bus


def _loader(settings: CloudConfig) -> Loader:
    return Loader(
        repository=Repository(settings.repository or default_root()),
        say=_say,
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
    names = wanted or loader.repository.names()
    if not names:
        root = loader.repository.root
        raise click.UsageError(f"repository {root} holds no model: run 'skylane model build road-small'")
    return [loader.load(name) for name in names]


def _say(text: str) -> None:
    click.echo(text, file=sys.stderr)
