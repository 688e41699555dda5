"""`skylane edge`: the vehicle node."""

import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edge import manifest as run_manifest
from edge.arrivals import Arrivals
from edge.config import EdgeConfig
from edge.hooks import Hooks
from edge.node import EdgeNode, PlaySettings
from edge.outcome import answerers_told, retries_told, unused_told
from edge.pipeline import Preparation
from edge.replay import Pace, Schedule
from edge.sinks.sink import SINKS, Sink, check_sinks, default_sinks
from edge.sources.source import SourceError, kind_of, open_source
from edge.transports.opening import open_transport
from edge.transports.transport import TRANSPORTS, Transport
from shared.config import FlagError, override, read_yaml
from shared.connection import broker_options
from shared.errors import SkylaneError
from shared.health_file import health_file_option
from shared.latency_log import CSV_NAME, LogError, LogWriter, Outcome, read_rows
from shared.latency_table import outcome_table, stage_table, summarise
from shared.messages import Want
from shared.model_card import ModelCard
from shared.processes import on_end_signals
from shared.registry import load
from shared.repair import repair_all
from shared.resources.sampler import RESOURCES_NAME, Sampler
from shared.run_manifest import keep_room, write_manifest
from shared.topics import checked
from shared.wants import check_want

READY = "ready: waiting for a line on the standard input"
NOTHING_ANSWERED = 3  # Exit code of a run that went well but for its frames: none was answered in time.


class RejectedError(SkylaneError):
    """A worker accepted no frame of a run."""


@click.group()
def edge() -> None:
    """The vehicle node: send frames, take masks, log every stage."""


@edge.command()
@click.argument("source")
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="A YAML file; flags win over it.")
@broker_options
@click.option("--transport", type=click.Choice([*TRANSPORTS]), help="How frames reach a worker. [mqtt]")
@click.option(
    "--worker-address",
    "worker_addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Of a worker's gRPC or HTTP door, for every transport but mqtt; again for more: the least busy gets the frame.",
)
@click.option(
    "--worker-tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Speak TLS to workers whose certificate this authority (PEM) signed; a token goes in SKYLANE_WORKER_TOKEN.",
)
@click.option("--vehicle", help="This vehicle's name. [vehicle]")
@click.option(
    "--min-bandwidth",
    "min_bandwidth_mbps",
    type=float,
    help="Mbit/s of the narrowest link to expect; frames that would hold it for too long are refused. [none]",
)
@click.option("--model", help="The model to ask for. [road-small]")
@click.option("--model-version", help="Of the model; the run stays with it. [the worker's current one]")
@click.option("--output", "outputs", multiple=True, help="Of a model of raw tensors, this one; again for more. [all]")
@click.option("--top-k", type=click.IntRange(1, 256), help="Classes of a classification. [as the model says]")
@click.option("--qos", type=click.IntRange(0, 1), help="Of frames and masks. [1]")
@click.option("--topics", multiple=True, help="Play this image topic of a bag; again for more. [all]")
@click.option("-r", "--rate", type=float, help="Times the source's own pace. [1]")
@click.option("-l", "--loop", is_flag=True, default=None, help="Start again at the end, until Ctrl-C.")
@click.option("-d", "--delay", "delay_s", type=float, help="Seconds to wait before the first frame. [0]")
@click.option("--start-offset", "start_offset_s", type=float, help="Seconds of the source to leave out. [0]")
@click.option("--playback-duration", "playback_duration_s", type=float, help="Seconds of the source to play. [all]")
@click.option("--frames", type=int, help="Stop after so many frames. [all]")
@click.option("--read-ahead-queue-size", type=int, help="Frames read before they are due. [16]")
@click.option("--closed-loop", is_flag=True, default=None, help="Send every frame, as fast as answers come.")
@click.option(
    "--arrivals",
    type=click.Choice(["source", "uniform", "poisson"]),
    help="What an open loop's frames fall due by: the source's times, or --arrival-rate. [source]",
)
@click.option("--arrival-rate", "arrival_rate_hz", type=float, help="Frames due a second, uniform or Poisson.")
@click.option("--seed", type=int, help="Of Poisson arrivals: one seed, one schedule. [drawn, and logged]")
@click.option("--queue", type=int, help="Due frames of a camera that may wait; the oldest is given up. [1]")
@click.option("--burst", type=int, help="Closed loop: so many fall due together, the next when all have ended. [1]")
@click.option("--codec", type=click.Choice(["raw", "jpeg", "png", "lz4", "zstd"]), help="Of frames. [jpeg]")
@click.option("--quality", type=int, help="Of JPEG, 1 to 100. [85]")
@click.option(
    "--demosaic",
    type=click.Choice(["auto", "bilinear", "edge-aware", "vng", "binning"]),
    help="Of Bayer frames; auto takes binning where half the resolution is enough. [auto]",
)
@click.option("--resize", type=click.Choice(["crop", "letterbox", "stretch"]), help="[as the model's card says]")
@click.option("--resize-at", type=click.Choice(["edge", "cloud"]), help="Who brings frames to the model's size. [edge]")
@click.option(
    "--mask-codec", type=click.Choice(["raw", "png", "rle", "lz4", "zstd"]), help="Of results; all lossless. [zstd]"
)
@click.option("--mask-size", type=click.Choice(["model", "frame"]), help="Size of the masks that come back. [model]")
@click.option("--window", type=int, help="Frames that may be unanswered at a time. [4]")
@click.option("--deadline-ms", type=float, help="After this a mask is of no use. [none]")
@click.option("--answer-timeout", "answer_timeout_s", type=float, help="Seconds until silence is a loss. [30]")
@click.option("--retry/--no-retry", default=None, help="Send a frame that meets silence once more. [on]")
@click.option("--retry-after-ms", type=float, help="The silence that is enough for it. [by what answers take]")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the run. [runs/<vehicle>-…]")
@click.option(
    "--sink", "sinks", multiple=True, type=click.Choice([*SINKS]), help="What to write results to. [by the task]"
)
@health_file_option
@click.option(
    "--sample-container",
    "sample_containers",
    multiple=True,
    help="Sample what this Docker container uses; again for more.",
)
@click.option("--no-sinks", is_flag=True, help="Write the log alone: nothing beside what is measured.")
@click.option("--wait-for-go", is_flag=True, help="When ready, say so and wait for a line on the standard input.")
def play(source: str, config: Path | None, *, no_sinks: bool, wait_for_go: bool, **flags: Any) -> None:
    """Play SOURCE (a bag, a video file, a folder of pictures, camera:0) to a worker and log every frame's journey.

    Ends with exit code 3 where no frame was answered in time.
    """
    settings = override(read_yaml(config, EdgeConfig) if config else EdgeConfig(), flags)
    if no_sinks:
        settings = settings.model_copy(update={"sinks": ()})
    sys.exit(run(source, settings, Console(), on_ready=_wait_for_go if wait_for_go else lambda: None))


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
    checked("vehicle", config.vehicle)
    checked("model", config.model)
    folder = config.out or Path("runs") / f"{config.vehicle}-{session}"
    kind = kind_of(source_name)
    if kind == "camera":
        _check_camera(config)
    with ExitStack() as stack:
        source = open_source(
            source_name,
            topics=config.topics,
            start_offset_s=config.start_offset_s,
            duration_s=config.playback_duration_s,
        )
        stack.callback(source.close)
        hooks = Hooks()
        say = partial(console.print, markup=False, highlight=False)
        transport = stack.enter_context(closing(open_transport(config, session, hooks=hooks, say=say)))
        card = _card(transport, config, hooks)
        config = _with_sinks(config, card)
        _close_killed_runs(folder, console)
        log = stack.enter_context(LogWriter(folder))
        nodes = {f"vehicle/{config.vehicle}": os.getpid(), **beside}
        sampler = stack.enter_context(Sampler(folder / RESOURCES_NAME, nodes, containers=config.sample_containers))
        manifest = run_manifest.begun(config, session, source.provenance, card)
        write_manifest(folder, manifest)
        keep_room(folder)
        node = EdgeNode(
            source,
            transport,
            log,
            _sinks(config, folder, card),
            _play_settings(config, session, card, live=kind == "camera"),
        )
        hooks.attach(node)
        on_ready()
        _stop_on_signals(node)
        faults: list[SkylaneError] = []
        try:
            _with_progress(node, _expected(config, source.frame_count), console)
        except SkylaneError as error:
            faults.append(error)
        faults += node.faults
        if node.overtaken:
            console.print(f"{node.overtaken} results came too late for their place: they are in no video and no bag")
        manifest["source"] = source.provenance  # Reading it may have told more.
        manifest["sampling"] = sampler.account()
        try:
            write_manifest(folder, run_manifest.ended(manifest, node.tally(), log.rows_lost))
        except LogError as error:
            faults.append(error)
        said = [
            *retries_told(node.tally()),
            *answerers_told(node.tally(), card),
            *unused_told(transport.unused()),
        ]
        if log.rows_lost:
            faults.append(LogError(f"{log.rows_lost} rows of {folder / CSV_NAME} were not written: {log.fault}"))
    for line in sampler.told():
        console.print(line, markup=False, highlight=False)
    rows = _report(folder, console, said)
    faults += _in_vain(rows, source_name, config.model)
    return _exit_code(rows, faults)


def _exit_code(rows: Sequence[Mapping[str, str]], faults: Sequence[SkylaneError]) -> int:
    """Report on standard error what went wrong; returns the exit code of the run."""
    for fault in faults:
        click.echo(f"skylane: {fault}", err=True)
    if faults:
        return 1
    if rows and not any(row["outcome"] == Outcome.ANSWERED for row in rows):
        click.echo(f"skylane: none of the {len(rows)} frames was answered in time: see the table of outcomes", err=True)
        return NOTHING_ANSWERED
    return 0


def _in_vain(rows: Sequence[Mapping[str, str]], source_name: str, model: str) -> Iterator[SkylaneError]:
    """Why a run came to nothing where it is one thing with all its frames; a table has no room for what to do."""
    if rows and all(row["reason"].startswith("undecodable") for row in rows):
        yield SourceError(f"{source_name}: none of its {len(rows)} frames can be read: {rows[0]['reason']}")
    if rows and all(row["outcome"] == Outcome.REJECTED for row in rows):
        yield RejectedError(f"model {model}: all {len(rows)} frames were rejected: {rows[0]['reason']}")


def _wait_for_go() -> None:
    """Whoever starts several vehicles has them begin together."""
    click.echo(READY)
    sys.stdin.readline()


def _check_camera(config: EdgeConfig) -> None:
    if config.arrivals is not Arrivals.SOURCE or config.burst > 1:
        raise FlagError("a camera's frames are due when it takes them: leave arrivals and burst out")


def _card(transport: Transport, config: EdgeConfig, hooks: Hooks) -> ModelCard:
    """The card of the model to play to, once it is sure that it can answer as is wished."""
    try:
        card = transport.wait_for_card(config.connect_timeout_s)
    finally:
        hooks.check()
    check_want(_want(config), card)
    return card


def _want(config: EdgeConfig) -> Want:
    return Want(config.mask_codec, config.mask_size, config.top_k, config.outputs)


def _close_killed_runs(folder: Path, console: Console) -> None:
    """What an earlier run beside this one left open when it was killed is closed now."""
    for killed, aborted in repair_all(folder.parent).items():
        console.print(
            f"{killed} was killed: {aborted} open frames are closed as aborted", markup=False, highlight=False
        )


def _with_sinks(config: EdgeConfig, card: ModelCard) -> EdgeConfig:
    """The same, with the sinks of the model's task where none are named; each holds what the model answers."""
    names = default_sinks(card.task) if config.sinks is None else config.sinks
    check_sinks(names, card)
    return config.model_copy(update={"sinks": tuple(dict.fromkeys(names))})


def _sinks(config: EdgeConfig, folder: Path, card: ModelCard) -> list[Sink]:
    with ExitStack() as opened:  # Where one cannot be opened, the others are closed.
        sinks: list[Sink] = []
        for name in config.sinks or ():
            sinks.append(load("sink", SINKS, name)(folder, card))
            opened.callback(sinks[-1].close)
        opened.pop_all()
    return sinks


def _play_settings(config: EdgeConfig, session: str, card: ModelCard, *, live: bool) -> PlaySettings:
    pace = Pace.LIVE if live else Pace.CLOSED_LOOP if config.closed_loop else Pace.OPEN_LOOP
    return PlaySettings(
        vehicle=config.vehicle,
        session=session,
        schedule=Schedule(
            pace=pace,
            arrivals=config.arrivals,
            rate=config.rate,
            arrival_rate_hz=config.arrival_rate_hz or 1.0,
            seed=config.seed or 0,
            burst=config.burst,
            loop=config.loop,
            delay_s=config.delay_s,
            read_ahead=config.read_ahead_queue_size,
            frames=config.frames,
        ),
        preparation=Preparation(
            card=card,
            codec=config.codec,
            quality=config.quality,
            demosaic=config.demosaic,
            resize=config.resize,
            resize_at=config.resize_at,
            want=_want(config),
            version=config.model_version,
        ),
        window=config.window,
        queue=config.queue,
        deadline_ms=config.deadline_ms,
        answer_timeout_s=config.answer_timeout_s,
        retries=config.retry,
        retry_after_ms=config.retry_after_ms,
        health_file=config.health_file,
    )


def _stop_on_signals(node: EdgeNode) -> None:
    """The first Ctrl-C drains; the second is the user's last word."""

    def stop(*_: object) -> None:
        node.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    on_end_signals(stop)


def _with_progress(node: EdgeNode, frame_count: int | None, console: Console) -> None:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
        task = progress.add_task("", total=frame_count)
        rate = _Rate()

        def tick() -> None:
            tally = node.tally()
            answered = tally.outcomes.get(Outcome.ANSWERED, 0)
            median = f" · p50 {tally.median_ms:.0f} ms" if tally.median_ms is not None else ""
            progress.update(
                task,
                completed=tally.closed,
                description=f"{rate.of(answered, progress.get_time()):.1f}/s · {tally.in_flight} in flight · "
                f"{answered} answered · {tally.outcomes.get(Outcome.DROPPED, 0)} dropped{median}",
            )

        node.run(tick)


def _expected(config: EdgeConfig, frame_count: int | None) -> int | None:
    """How many frames the run will see, as far as that is known."""
    if config.loop or frame_count is None:
        return config.frames
    return min(frame_count, config.frames or frame_count)


class _Rate:
    """Answers a second since the first look."""

    def __init__(self) -> None:
        self._began: float | None = None

    def of(self, answered: int, now_s: float) -> float:
        """The rate at this look."""
        self._began = now_s if self._began is None else self._began
        return answered / max(0.1, now_s - self._began)


def _report(folder: Path, console: Console, said: Sequence[str]) -> list[dict[str, str]]:
    """Print the tables of a run and what is said beside them; returns its rows."""
    try:
        rows = list(read_rows(folder))
        summaries = summarise(rows)
    except SkylaneError as error:
        console.print(str(error), markup=False)
        return []
    if summaries:
        console.print(stage_table(summaries))
    console.print(outcome_table(rows))
    for line in said:
        console.print(line, markup=False, highlight=False)
    console.print(f"The run is in {folder}", markup=False, highlight=False)
    return rows
