"""The command `skylane edge play`: its options and its exit code."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from edge.config import EdgeConfig
from edge.pacing.arrivals import Arrivals
from edge.run import run
from edge.sources.opening import is_live
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.flags import EXISTING_FILE, GroupedCommand, key_option, option_group, override
from shared.logs import LogFormat, configure_logging, get_logger, log_options
from shared.network.broker_options import broker_options
from shared.runtime.health_file import health_file_option

READY = "ready: waiting for a line on the standard input"

_LOG = get_logger("edge")
_option = partial(key_option, EdgeConfig)


@click.group()
def edge() -> None:
    """The vehicle node: sends frames, receives results, logs the latency of every stage."""


@edge.command(cls=GroupedCommand)
@click.argument("source")
@click.option("--config", type=EXISTING_FILE, help="Configuration file (YAML); flags override it.")
@option_group(
    "Source",
    _option("--topics", text="Image topic of the bag to play (repeatable).", default="all"),
    _option("--frames", text="Number of frames to play.", default="all"),
    _option("-l", "--loop", text="Repeat the source until Ctrl-C."),
    _option("--start-offset", "start_offset_s", text="Seconds of the source to skip at its start."),
    _option("--playback-duration", "playback_duration_s", text="Seconds of the source to play.", default="all"),
    _option("--read-ahead-queue-size", text="Number of frames read in advance."),
)
@option_group(
    "Connection",
    _option("--model", metavar="NAME", text="Model that answers the frames."),
    _option("--model-version", text="Version of the model, for the whole run.", default="the worker's current one"),
    _option("--vehicle", metavar="NAME", text="Name of this vehicle."),
    broker_options,
    _option("--transport", text="Protocol between vehicle and worker."),
    _option(
        "--worker-address",
        "worker_addresses",
        metavar="HOST:PORT",
        text="Address of a worker's gRPC or HTTP endpoint (repeatable), for every transport except mqtt. Each frame goes "
        "to the worker with the fewest frames in flight.",
    ),
    _option(
        "--worker-tls-ca",
        type=EXISTING_FILE,
        text="Certificate authority (PEM) of the workers; turns TLS on. The token is read from SKYLANE_WORKER_TOKEN.",
    ),
    _option("--qos", text="MQTT quality of service of frames and results."),
    _option(
        "--min-bandwidth",
        "min_bandwidth_mbps",
        text="Slowest link to expect, in Mbit/s; frames that would occupy it for too long are dropped.",
        default="none",
    ),
)
@option_group(
    "Timing",
    _option("-r", "--rate", text="Playback speed, relative to the source."),
    _option("--deadline-ms", text="Deadline of an answer, in ms after the frame was due.", default="none"),
    _option("--window", text="Maximum number of unanswered frames."),
    _option("--queue", text="Number of due frames per camera that may wait; if more are due, the oldest is dropped."),
    _option("--closed-loop", text="Send every frame, the next one when an answer arrives."),
    _option("--burst", text="Closed loop: number of frames that are due together; the next ones when all have ended."),
    _option("--arrivals", text="When frames are due in an open loop: at the source's times, or at --arrival-rate."),
    _option(
        "--arrival-rate", "arrival_rate_hz", text="Frames per second of uniform or Poisson arrivals.", default="none"
    ),
    _option(
        "--seed",
        text="Seed of Poisson arrivals; the same seed gives the same schedule.",
        default="random, in the manifest",
    ),
    _option("-d", "--delay", "delay_s", text="Seconds to wait before the first frame."),
    _option("--answer-timeout", "answer_timeout_s", text="Seconds after which a frame without an answer is lost."),
    _option("--retry/--no-retry", text="Send a frame a second time if it gets no answer."),
    _option(
        "--retry-after-ms",
        text="Time without an answer after which it is sent again.",
        default="from recent answer times",
    ),
)
@option_group(
    "Encoding",
    _option("--codec", text="Encoding of frames."),
    _option("--quality", text="JPEG quality."),
    _option("--resize", text="How frames are resized to the model's input size.", default="as the model's card says"),
    _option("--resize-at", text="Node that resizes frames."),
    _option("--demosaic", text="Demosaicing of Bayer frames; auto uses binning where half the resolution is enough."),
    _option("--mask-codec", text="Encoding of results; all are lossless."),
    _option("--mask-size", text="Size of the masks that are returned."),
)
@option_group(
    "Results",
    _option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        text="Folder of the run.",
        default="runs/<UTC time>-<vehicle>",
    ),
    _option("--sink", "sinks", text="Format in which results are written (repeatable).", default="by the task"),
    click.option("--no-sinks", is_flag=True, help="Write the log only, no results."),
    _option("--video-codec", text="Codec of --sink video."),
    _option("--top-k", text="Number of classes that a classification returns.", default="as the model says"),
    _option(
        "--output",
        "outputs",
        text="Output tensor to return (repeatable), for models of raw tensors.",
        default="all",
    ),
)
@option_group(
    "Advanced",
    log_options,
    health_file_option,
    _option(
        "--sample-container",
        "sample_containers",
        text="Docker container whose resource use is sampled (repeatable).",
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
    if is_live(source) and (settings.arrivals is not Arrivals.SOURCE or settings.burst > 1):
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
