"""The command `skylane edge play`: its options and its exit code."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from edge.config import Arrivals, EdgeConfig
from edge.run import run
from edge.sources.source import is_live
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.flags import EXISTING_FILE, GroupedCommand, KeyOption, key_options, override
from shared.logs import LogFormat, configure_logging, get_logger
from shared.mqtt.broker_options import broker_options

READY = "ready: waiting for a line on the standard input"

_LOG = get_logger("edge")
_options = partial(key_options, EdgeConfig)


@click.group()
def edge() -> None:
    """The vehicle node: sends frames, receives results, logs the latency of every stage."""


_DAILY = (
    *("--config", "--topic", "--frames", "--loop", "--model", "--vehicle", "--broker", "--certs", "--transport"),
    *("--worker-address", "--rate", "--deadline-ms", "--closed-loop", "--local-model", "--gate", "--present"),
    *("--codec", "--quality", "--resize", "--out", "--sink", "--view", "--quiet", "--help-all", "--help"),
)


@edge.command(cls=GroupedCommand, daily=_DAILY, keys=EdgeConfig.model_fields)
@click.argument("source")
@click.option("--config", type=EXISTING_FILE, help="Configuration file (YAML); flags override it.")
@_options("Source", "topics", "frames", "loop", "start_offset_s", "playback_duration_s", "bits", "encodings")
@_options("Connection", "model", "model_version", "vehicle")
@broker_options
@_options("Connection", "transport", "dispatch", "worker_addresses", "worker_tls_ca", "min_bandwidth_mbps")
@_options(
    "Timing", "rate", "deadline_ms", "window", "queue", "closed_loop", "burst", "arrivals", "arrival_rate_hz", "seed"
)
@_options("Timing", "delay_s", "answer_timeout_s", "retry", "retry_after_ms")
@_options("Frames that are not sent", "gate", "gate_threshold", "reuse_frames", "reuse_ms", "local_model", "models")
@_options("Frames that are not sent", "cascade", "c_low", "c_high", "local_timeout_ms", "local_threads", "tuning")
@_options("Presentation", "present", "present_max_age_ms", "fusion")
@_options("Encoding", "codec", "quality", "resize", "resize_at", "mask_codec", "mask_size")
@_options("Results", "out", "sinks")
@click.option("--no-sinks", cls=KeyOption, heading="Results", is_flag=True, help="Write the log only, no results.")
@_options("Results", "video_codec", "top_k", "outputs")
@_options("Live view", "view", "view_limit", "view_host", "view_tls_cert", "view_tls_key")
@_options("Advanced", "log_level", "log_format", "health_file", "otel", "otel_share")
@_options("Advanced", "metrics", "sample_containers")
@click.option(
    "--wait-for-go",
    cls=KeyOption,
    heading="Advanced",
    is_flag=True,
    help="When ready, print so and wait for a line on standard input.",
)
def play(source: str, config: Path | None, *, no_sinks: bool, wait_for_go: bool, **flags: Any) -> None:
    """Play SOURCE to a worker, and log the latency of every frame.

    SOURCE is a bag, a video file, a folder of images, or a camera, such as camera:0. The exit code is 0, or 1 for an
    error, 2 for a wrong command line, 3 if no frame got a result in time.
    """
    settings = override(read_yaml(config, EdgeConfig) if config else EdgeConfig(), flags)
    if no_sinks and flags["sinks"]:
        raise click.UsageError("--sink: --no-sinks writes no results: leave one of the two out")
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
