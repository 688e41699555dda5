"""`skylane edge`: the vehicle node."""

import os
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from rich.console import Console

from edge import run_record as run_manifest
from edge.config import EdgeConfig
from edge.node import EdgeNode, RunSettings
from edge.pacing.arrivals import Arrivals
from edge.progress import run_with_progress
from edge.run_summary import answerers_told, common_faults, exit_code, print_report, retries_told, unused_told
from edge.sinks.sink import SINKS, Sink, check_sinks, default_sinks
from edge.sinks.video_codec import VideoCodec
from edge.sources.source import is_camera, open_source
from edge.transport_events import TransportEvents
from edge.transports.factory import open_transport
from edge.transports.transport import TRANSPORTS, Transport
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.flags import number, override
from shared.logs import LogFormat, configure_logging, get_logger, log_options
from shared.messages.model_card import ModelCard
from shared.messages.request_options import check_request_options
from shared.network.broker_options import broker_options
from shared.registry import load
from shared.resources.sampler import RESOURCES_NAME, ResourceSampler
from shared.runlog.latency_log import CSV_NAME, LogError, LogWriter
from shared.runlog.repair import repair_all
from shared.runlog.run_folder import contents, discard_unless_started, run_folder
from shared.runlog.run_manifest import reserve_space, write_manifest
from shared.runtime.health_file import health_file_option
from shared.runtime.processes import on_termination_signals

_LOG = get_logger("edge")
_number = partial(number, EdgeConfig)

READY = "ready: waiting for a line on the standard input"


@click.group()
def edge() -> None:
    """The vehicle node: send frames, take masks, log every stage."""


@edge.command()
@click.argument("source")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file (YAML); flags override it.",
)
@broker_options
@click.option("--transport", type=click.Choice([*TRANSPORTS]), help="Protocol between vehicle and worker. [mqtt]")
@click.option(
    "--worker-address",
    "worker_addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of a worker's gRPC or HTTP endpoint (repeatable), for every transport but mqtt. Each frame goes to the "
    "worker with the fewest frames in flight.",
)
@click.option(
    "--worker-tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificate authority (PEM) of the workers; turns TLS on. The token is read from SKYLANE_WORKER_TOKEN.",
)
@click.option("--vehicle", metavar="NAME", help="Name of this vehicle. [vehicle]")
@click.option(
    "--min-bandwidth",
    "min_bandwidth_mbps",
    type=_number("min_bandwidth_mbps"),
    help="Slowest link to expect, in Mbit/s; frames that would occupy it for too long are dropped. [none]",
)
@click.option("--model", metavar="NAME", help="Model that answers the frames. [road-small]")
@click.option("--model-version", help="Version of the model, for the whole run. [the worker's current one]")
@click.option(
    "--output", "outputs", multiple=True, help="Output tensor to return (repeatable), for models of raw tensors. [all]"
)
@click.option(
    "--top-k", type=_number("top_k"), help="Number of classes that a classification returns. [as the model says]"
)
@click.option("--qos", type=_number("qos"), help="MQTT quality of service of frames and results. [1]")
@click.option("--topics", multiple=True, help="Image topic of the bag to play (repeatable). [all]")
@click.option("-r", "--rate", type=_number("rate"), help="Playback speed, relative to the source. [1]")
@click.option("-l", "--loop", is_flag=True, default=None, help="Repeat the source until Ctrl-C.")
@click.option("-d", "--delay", "delay_s", type=_number("delay_s"), help="Seconds to wait before the first frame. [0]")
@click.option(
    "--start-offset",
    "start_offset_s",
    type=_number("start_offset_s"),
    help="Seconds of the source to skip at its start. [0]",
)
@click.option(
    "--playback-duration",
    "playback_duration_s",
    type=_number("playback_duration_s"),
    help="Seconds of the source to play. [all]",
)
@click.option("--frames", type=_number("frames"), help="Number of frames to play. [all]")
@click.option(
    "--read-ahead-queue-size", type=_number("read_ahead_queue_size"), help="Number of frames read in advance. [16]"
)
@click.option(
    "--closed-loop", is_flag=True, default=None, help="Send every frame, the next one when an answer arrives."
)
@click.option(
    "--arrivals",
    type=click.Choice(["source", "uniform", "poisson"]),
    help="When frames are due in an open loop: at the source's times, or at --arrival-rate. [source]",
)
@click.option(
    "--arrival-rate",
    "arrival_rate_hz",
    type=_number("arrival_rate_hz"),
    help="Frames per second of uniform or Poisson arrivals.",
)
@click.option(
    "--seed",
    type=_number("seed"),
    help="Seed of Poisson arrivals; the same seed gives the same schedule. [random, in the manifest]",
)
@click.option(
    "--queue",
    type=_number("queue"),
    help="Number of due frames per camera that may wait; beyond it the oldest is dropped. [1]",
)
@click.option(
    "--burst",
    type=_number("burst"),
    help="Closed loop: number of frames that are due together; the next ones when all have ended. [1]",
)
@click.option("--codec", type=click.Choice(["raw", "jpeg", "png", "lz4", "zstd"]), help="Encoding of frames. [jpeg]")
@click.option("--quality", type=_number("quality"), help="JPEG quality. [85]")
@click.option(
    "--demosaic",
    type=click.Choice(["auto", "bilinear", "edge-aware", "vng", "binning"]),
    help="Demosaicing of Bayer frames; auto uses binning where half the resolution is enough. [auto]",
)
@click.option(
    "--resize",
    type=click.Choice(["crop", "letterbox", "stretch"]),
    help="How frames are brought to the model's size. [as the model's card says]",
)
@click.option(
    "--resize-at", type=click.Choice(["edge", "cloud"]), help="Node that resizes frames to the model's size. [edge]"
)
@click.option(
    "--mask-codec",
    type=click.Choice(["raw", "png", "rle", "lz4", "zstd"]),
    help="Encoding of results; all are lossless. [zstd]",
)
@click.option("--mask-size", type=click.Choice(["model", "frame"]), help="Size of the masks that are returned. [model]")
@click.option("--window", type=_number("window"), help="Maximum number of unanswered frames. [4]")
@click.option(
    "--deadline-ms", type=_number("deadline_ms"), help="Deadline of an answer, in ms after the frame was due. [none]"
)
@click.option(
    "--answer-timeout",
    "answer_timeout_s",
    type=_number("answer_timeout_s"),
    help="Seconds after which a frame without an answer is lost. [30]",
)
@click.option("--retry/--no-retry", default=None, help="Send a frame a second time if it gets no answer. [on]")
@click.option(
    "--retry-after-ms",
    type=_number("retry_after_ms"),
    help="Time without an answer after which it is sent again. [from recent answer times]",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the run. [runs/<UTC time>-<vehicle>]"
)
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    type=click.Choice([*SINKS]),
    help="Format in which results are written (repeatable). [by the task]",
)
@click.option("--video-codec", type=click.Choice([*map(str, VideoCodec)]), help="Codec of --sink video. [vp9]")
@health_file_option
@click.option(
    "--sample-container",
    "sample_containers",
    multiple=True,
    help="Docker container whose resource use is sampled (repeatable).",
)
@click.option("--no-sinks", is_flag=True, help="Write the log only, no results.")
@click.option("--wait-for-go", is_flag=True, help="When ready, print so and wait for a line on standard input.")
@log_options
def play(source: str, config: Path | None, *, no_sinks: bool, wait_for_go: bool, **flags: Any) -> None:
    """Play SOURCE (a bag, a video file, a folder of pictures, camera:0) to a worker and log every frame's journey.

    The exit code is 0, or 1 for an error, 2 for a wrong command line, 3 if no frame was answered in time.
    """
    settings = override(read_yaml(config, EdgeConfig) if config else EdgeConfig(), flags)
    if no_sinks:
        settings = settings.model_copy(update={"sinks": ()})
    if is_camera(source) and (settings.arrivals is not Arrivals.SOURCE or settings.burst > 1):
        raise click.UsageError("a camera's frames are due when it takes them: leave --arrivals and --burst out")
    configure_logging(
        level=settings.log_level,
        log_format=settings.log_format,
        context={"node": "edge", "vehicle": settings.vehicle},
    )
    try:
        code = run(source, settings, Console(), on_ready=_wait_for_go if wait_for_go else lambda: None)
    except Exception as error:
        if settings.log_format != LogFormat.JSON:
            raise
        # A log collector accepts JSON lines only.
        _LOG.error("ended by an error", reason=str(error), exc_info=not isinstance(error, SkylaneError))
        code = 1
    sys.exit(code)


def run(
    source_name: str,
    config: EdgeConfig,
    console: Console,
    *,
    beside: Mapping[str, int] = MappingProxyType({}),
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Play a source as `config` says, print the tables; returns the exit code: 0, 1 for a fault, or `NOTHING_ANSWERED`.

    `beside`: processes to sample beside this one, their numbers by node: `worker/<name>`, `broker` or `link`.
    `on_ready` is called when all is connected and open; the first frame falls due after it has returned.

    Raises:
        SkylaneError: the run could not begin.
    """
    session = uuid.uuid4().hex[:12]
    config = config.seeded()
    folder = config.out or run_folder(config.vehicle)
    with ExitStack() as stack:
        source = open_source(
            source_name,
            topics=config.topics,
            start_offset_s=config.start_offset_s,
            duration_s=config.playback_duration_s,
        )
        stack.callback(source.close)
        hooks = TransportEvents()
        transport = stack.enter_context(closing(open_transport(config, session, hooks=hooks)))
        card = _card(transport, config, hooks)
        config = _with_sinks(config, card)
        _close_killed_runs(folder)
        before = contents(folder)
        log = stack.enter_context(LogWriter(folder))
        begin = stack.enter_context(discard_unless_started(folder, before))
        nodes = {f"vehicle/{config.vehicle}": os.getpid(), **beside}
        sampler = stack.enter_context(
            ResourceSampler(folder / RESOURCES_NAME, nodes, containers=config.sample_containers)
        )
        manifest = run_manifest.begun(config, session, source.provenance, card)
        write_manifest(folder, manifest)
        reserve_space(folder)
        node = EdgeNode(
            source,
            transport,
            log,
            _sinks(config, folder, card),
            RunSettings.of(config, session, card, is_live=is_camera(source_name)),
        )
        hooks.attach(node)
        on_ready()
        begin()
        _LOG.info(
            "run started",
            session=session,
            source=source_name,
            model=f"{card.name} {card.version}",
            transport=config.transport,
            folder=str(folder.resolve()),
        )
        _stop_on_signals(node)
        faults: list[SkylaneError] = []
        try:
            run_with_progress(node, _expected(config, source.frame_count), Console(stderr=True))
        except SkylaneError as error:
            faults.append(error)
        faults += node.faults
        if node.overtaken:
            console.print(f"{node.overtaken} results came too late for their place: they are in no video and no bag")
        tally = node.tally()
        _LOG.info("run ended", read=tally.read, **{outcome.value: count for outcome, count in tally.outcomes.items()})
        manifest["source"] = source.provenance  # Reading it may have told more.
        manifest["sampling"] = sampler.account()
        try:
            write_manifest(folder, run_manifest.ended(manifest, tally, log.rows_lost))
        except LogError as error:
            faults.append(error)
        said = [
            *retries_told(tally),
            *answerers_told(tally, card),
            *unused_told(transport.unused()),
        ]
        if log.rows_lost:
            faults.append(LogError(f"{log.rows_lost} rows of {folder / CSV_NAME} were not written: {log.fault}"))
    for line in sampler.told():
        console.print(line, markup=False, highlight=False)
    rows = print_report(folder, console, said)
    faults += common_faults(rows, source_name, config.model)
    return exit_code(rows, faults, config.log_format)


def _wait_for_go() -> None:
    """Whoever starts several vehicles has them begin together."""
    click.echo(READY)
    sys.stdin.readline()


def _card(transport: Transport, config: EdgeConfig, hooks: TransportEvents) -> ModelCard:
    """The card of the model to play to, once it is sure that it can answer as is wished."""
    try:
        card = transport.wait_for_card(config.connect_timeout_s)
    finally:
        hooks.check()
    check_request_options(config.want, card)
    return card


def _close_killed_runs(folder: Path) -> None:
    """Closes what earlier runs beside this one left open when they were killed."""
    for killed, aborted in repair_all(folder.parent).items():
        _LOG.warning("killed run closed", folder=str(killed.resolve()), frames_aborted=aborted)


def _with_sinks(config: EdgeConfig, card: ModelCard) -> EdgeConfig:
    """The same, with the sinks of the model's task where none are named; each holds what the model answers."""
    names = default_sinks(card.task) if config.sinks is None else config.sinks
    check_sinks(names, card)
    return config.model_copy(update={"sinks": tuple(dict.fromkeys(names))})


def _sinks(config: EdgeConfig, folder: Path, card: ModelCard) -> list[Sink]:
    with ExitStack() as opened:  # Where one cannot be opened, the others are closed.
        sinks: list[Sink] = []
        for name in config.sinks or ():
            settings = {setting: getattr(config, setting) for setting in SINKS[name].settings}
            sinks.append(load("sink", SINKS, name)(folder, card, **settings))
            opened.callback(sinks[-1].close)
        opened.pop_all()
    return sinks


def _stop_on_signals(node: EdgeNode) -> None:
    """The first Ctrl-C drains; the second is the user's last word."""

    def stop(*_: object) -> None:
        node.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    on_termination_signals(stop)


def _expected(config: EdgeConfig, frame_count: int | None) -> int | None:
    """How many frames the run will see, as far as that is known."""
    if config.loop or frame_count is None:
        return config.frames
    return min(frame_count, config.frames or frame_count)
