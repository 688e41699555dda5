"""The command `skylane edge play`: its options and its exit code."""

import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from edge.config import EdgeConfig
from edge.pacing.replay import Arrivals
from edge.run import run
from edge.sinks.sink import SINKS
from edge.sinks.video_codec import VideoCodec
from edge.sources.source import is_camera
from edge.transports.transport import TRANSPORTS
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.flags import number, override
from shared.imaging.geometry import Resize
from shared.logs import LogFormat, configure_logging, get_logger, log_options
from shared.network.broker_options import broker_options
from shared.option_groups import GroupedCommand
from shared.runtime.health_file import health_file_option

READY = "ready: waiting for a line on the standard input"
OPTION_GROUPS = {
    "Source": ("topics", "frames", "loop", "start_offset_s", "playback_duration_s", "read_ahead_queue_size"),
    "Connection": (
        "broker",
        "model",
        "model_version",
        "vehicle",
        "transport",
        "worker_addresses",
        "worker_tls_ca",
        "connect_timeout_s",
        "certs",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "qos",
        "min_bandwidth_mbps",
    ),
    "Timing": (
        "rate",
        "deadline_ms",
        "window",
        "queue",
        "closed_loop",
        "burst",
        "arrivals",
        "arrival_rate_hz",
        "seed",
        "delay_s",
        "answer_timeout_s",
        "retry",
        "retry_after_ms",
    ),
    "Encoding": ("codec", "quality", "resize", "resize_at", "demosaic", "mask_codec", "mask_size"),
    "Results": ("out", "sinks", "no_sinks", "video_codec", "top_k", "outputs"),
    "Advanced": ("log_level", "log_format", "health_file", "sample_containers", "wait_for_go"),
}

_LOG = get_logger("edge")
_number = partial(number, EdgeConfig)


def _choice(key: str) -> "click.Choice[str]":
    """Returns the type of a flag for a configuration key whose values are listed in its type."""
    return click.Choice(get_args(EdgeConfig.model_fields[key].annotation))


@click.group()
def edge() -> None:
    """The vehicle node: sends frames, receives results, logs the latency of every stage."""


@edge.command(cls=GroupedCommand, option_groups=OPTION_GROUPS)
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
    help="Address of a worker's gRPC or HTTP endpoint (repeatable), for every transport except mqtt. Each frame goes to "
    "the worker with the fewest frames in flight.",
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
    type=click.Choice([*map(str, Arrivals)]),
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
    help="Number of due frames per camera that may wait; if more are due, the oldest is dropped. [1]",
)
@click.option(
    "--burst",
    type=_number("burst"),
    help="Closed loop: number of frames that are due together; the next ones when all have ended. [1]",
)
@click.option("--codec", type=_choice("codec"), help="Encoding of frames. [jpeg]")
@click.option("--quality", type=_number("quality"), help="JPEG quality. [85]")
@click.option(
    "--demosaic",
    type=_choice("demosaic"),
    help="Demosaicing of Bayer frames; auto uses binning where half the resolution is enough. [auto]",
)
@click.option(
    "--resize",
    type=click.Choice([*map(str, Resize)]),
    help="How frames are resized to the model's input size. [as the model's card says]",
)
@click.option("--resize-at", type=_choice("resize_at"), help="Node that resizes frames. [edge]")
@click.option("--mask-codec", type=_choice("mask_codec"), help="Encoding of results; all are lossless. [zstd]")
@click.option("--mask-size", type=_choice("mask_size"), help="Size of the masks that are returned. [model]")
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
