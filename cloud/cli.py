"""`skylane cloud`: the command line of the cloud node."""

import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from cloud.config import CloudConfig
from cloud.control_cli import control
from cloud.run import run
from shared.config import read_yaml
from shared.errors import SkylaneError
from shared.flags import EXISTING_FILE, GroupedCommand, KeyOption, key_options, override
from shared.logs import LogFormat, configure_logging, get_logger
from shared.messages.topics import sanitize_name
from shared.mqtt.broker_options import broker_options

_LOG = get_logger("cloud")
_options = partial(key_options, CloudConfig)


@click.group()
def cloud() -> None:
    """The cloud node: runs models on frames and replies with their results."""


cloud.add_command(control)


_DAILY = (
    *("--config", "--models", "--model", "--device", "--engine", "--precision", "--worker", "--broker", "--certs"),
    *("--http", "--grpc", "--tokens", "--max-frames", "--max-batch", "--max-wait-ms", "--control"),
    *(
        "--operator",
        "--resources",
        "--metrics",
        "--otel",
        "--log-level",
        "--threads",
        "--quiet",
        "--help-all",
        "--help",
    ),
)


@cloud.command(cls=GroupedCommand, daily=_DAILY, keys=CloudConfig.model_fields)
@click.option("--config", type=EXISTING_FILE, help="A YAML file with settings; flags override it.")
@_options("Models", "models", "repository", "device", "engine", "precision", "warm_up_runs")
@_options("Connection", "worker")
@broker_options
@_options("Connection", "group", "no_broker")
@_options("Gateway", "http", "grpc", "listen", "gateway_tls_cert", "gateway_tls_key", "tokens", "images")
@_options("Gateway", "origins", "allowed_hosts", "max_message_bytes", "max_calls")
@_options("Queue and batching", "max_frames", "max_bytes", "max_pixels", "max_batch", "max_wait_ms", "instances")
@_options("Operation", "control", "operators", "health_file")
@click.option(
    "--resources",
    cls=KeyOption,
    heading="Operation",
    type=click.Path(dir_okay=False, path_type=Path),
    help="CSV file to which CPU, memory, network and GPU use of this worker is written once a second.",
)
@_options("Operation", "otel", "otel_share", "log_level", "log_format")
@_options("Advanced", "threads", "decoders", "isolate")
def serve(config: Path | None, resources: Path | None, **flags: Any) -> None:
    """Serve models until Ctrl-C, SIGTERM or SIGHUP. Accepted frames are finished first."""
    settings = override(read_yaml(config, CloudConfig) if config else CloudConfig(), flags)
    worker = settings.worker or sanitize_name(f"{socket.gethostname()}-{os.getpid()}")
    settings = settings.model_copy(update={"worker": worker})
    configure_logging(
        level=settings.log_level,
        log_format=settings.log_format,
        context={"node": "cloud", "worker": worker},
    )
    try:
        run(settings, resources)
    except Exception as error:
        if settings.log_format != LogFormat.JSON:
            raise
        # A log collector can parse only JSON lines.
        _LOG.error("ended by an error", reason=str(error), exc_info=not isinstance(error, SkylaneError))
        sys.exit(1)
