"""The command `skylane edge play`: its options and its exit code."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
from rich.console import Console

from edge.config import EdgeConfig
from edge.pacing.replay import Arrivals
from edge.run import run
from edge.sinks.sink import SINKS
from edge.sources.source import is_camera
from edge.transports.transport import TRANSPORTS
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.flags import GroupedCommand, number, option_group, override
from shared.logs import LogFormat, configure_logging, get_logger, log_options
from shared.network.broker_options import broker_options
from shared.runtime.health_file import health_file_option

READY = "ready: waiting for a line on the standard input"

_LOG = get_logger("edge")


def _option(*names: str, text: str, shown: str = "", **attributes: Any) -> Callable[[Any], Any]:
    """Returns the option of a configuration key, with the type and the default of the key.

    Args:
        names: Flags, and the key if it differs from the flag.
        text: The help text.
        shown: What the help shows as the default if the key's default says too little.
        attributes: Further arguments of `click.option`.
    """
    key = next((name for name in names if not name.startswith("-")), names[-1].lstrip("-").replace("-", "_"))
    default = EdgeConfig.model_fields[key].default
    shown = shown or (f"{default:g}" if isinstance(default, float) else str(default))
    return click.option(*names, help=f"{text} [{shown}]", **{"type": _type(key), **attributes})


def _type(key: str) -> "click.ParamType[Any] | None":
    """Returns the type of the option of a key: a number with its range, a choice, or None for text."""
    annotation = EdgeConfig.model_fields[key].annotation
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    kind = (*get_args(annotation), annotation)[0]
    if kind in (int, float):
        return number(EdgeConfig, key)
    return click.Choice([*map(str, kind)]) if isinstance(kind, type) and issubclass(kind, StrEnum) else None


@click.group()
def edge() -> None:
    """The vehicle node: sends frames, receives results, logs the latency of every stage."""


@edge.command(cls=GroupedCommand)
@click.argument("source")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file (YAML); flags override it.",
)
@option_group(
    "Source",
    _option("--topics", multiple=True, text="Image topic of the bag to play (repeatable).", shown="all"),
    _option("--frames", text="Number of frames to play.", shown="all"),
    click.option("-l", "--loop", is_flag=True, default=None, help="Repeat the source until Ctrl-C."),
    _option("--start-offset", "start_offset_s", text="Seconds of the source to skip at its start."),
    _option("--playback-duration", "playback_duration_s", text="Seconds of the source to play.", shown="all"),
    _option("--read-ahead-queue-size", text="Number of frames read in advance."),
)
@option_group(
    "Connection",
    _option("--model", metavar="NAME", text="Model that answers the frames."),
    _option("--model-version", text="Version of the model, for the whole run.", shown="the worker's current one"),
    _option("--vehicle", metavar="NAME", text="Name of this vehicle."),
    broker_options,
    _option("--transport", type=click.Choice([*TRANSPORTS]), text="Protocol between vehicle and worker."),
    click.option(
        "--worker-address",
        "worker_addresses",
        multiple=True,
        metavar="HOST:PORT",
        help="Address of a worker's gRPC or HTTP endpoint (repeatable), for every transport except mqtt. Each frame goes "
        "to the worker with the fewest frames in flight.",
    ),
    click.option(
        "--worker-tls-ca",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Certificate authority (PEM) of the workers; turns TLS on. The token is read from SKYLANE_WORKER_TOKEN.",
    ),
    _option("--qos", text="MQTT quality of service of frames and results."),
    _option(
        "--min-bandwidth",
        "min_bandwidth_mbps",
        text="Slowest link to expect, in Mbit/s; frames that would occupy it for too long are dropped.",
        shown="none",
    ),
)
@option_group(
    "Timing",
    _option("-r", "--rate", text="Playback speed, relative to the source."),
    _option("--deadline-ms", text="Deadline of an answer, in ms after the frame was due.", shown="none"),
    _option("--window", text="Maximum number of unanswered frames."),
    _option("--queue", text="Number of due frames per camera that may wait; if more are due, the oldest is dropped."),
    click.option(
        "--closed-loop", is_flag=True, default=None, help="Send every frame, the next one when an answer arrives."
    ),
    _option("--burst", text="Closed loop: number of frames that are due together; the next ones when all have ended."),
    _option("--arrivals", text="When frames are due in an open loop: at the source's times, or at --arrival-rate."),
    _option(
        "--arrival-rate", "arrival_rate_hz", text="Frames per second of uniform or Poisson arrivals.", shown="none"
    ),
    _option(
        "--seed",
        text="Seed of Poisson arrivals; the same seed gives the same schedule.",
        shown="random, in the manifest",
    ),
    _option("-d", "--delay", "delay_s", text="Seconds to wait before the first frame."),
    _option("--answer-timeout", "answer_timeout_s", text="Seconds after which a frame without an answer is lost."),
    click.option("--retry/--no-retry", default=None, help="Send a frame a second time if it gets no answer. [on]"),
    _option(
        "--retry-after-ms",
        text="Time without an answer after which it is sent again.",
        shown="from recent answer times",
    ),
)
@option_group(
    "Encoding",
    _option("--codec", text="Encoding of frames."),
    _option("--quality", text="JPEG quality."),
    _option("--resize", text="How frames are resized to the model's input size.", shown="as the model's card says"),
    _option("--resize-at", text="Node that resizes frames."),
    _option("--demosaic", text="Demosaicing of Bayer frames; auto uses binning where half the resolution is enough."),
    _option("--mask-codec", text="Encoding of results; all are lossless."),
    _option("--mask-size", text="Size of the masks that are returned."),
)
@option_group(
    "Results",
    click.option(
        "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the run. [runs/<UTC time>-<vehicle>]"
    ),
    _option(
        "--sink",
        "sinks",
        multiple=True,
        type=click.Choice([*SINKS]),
        text="Format in which results are written (repeatable).",
        shown="by the task",
    ),
    click.option("--no-sinks", is_flag=True, help="Write the log only, no results."),
    _option("--video-codec", text="Codec of --sink video."),
    _option("--top-k", text="Number of classes that a classification returns.", shown="as the model says"),
    _option(
        "--output",
        "outputs",
        multiple=True,
        text="Output tensor to return (repeatable), for models of raw tensors.",
        shown="all",
    ),
)
@option_group(
    "Advanced",
    log_options,
    health_file_option,
    click.option(
        "--sample-container",
        "sample_containers",
        multiple=True,
        help="Docker container whose resource use is sampled (repeatable).",
    ),
    click.option("--wait-for-go", is_flag=True, help="When ready, print so and wait for a line on standard input."),
)
def play(source: str, config: Path | None, *, no_sinks: bool, wait_for_go: bool, **flags: Any) -> None:
    """Play SOURCE (a bag, a video file, a folder of images, camera:0) to a worker and log every frame's latency.

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


def _wait_for_go() -> None:
    """Waits for a line on standard input, so that several vehicles can start at the same time."""
    click.echo(READY)
    sys.stdin.readline()
