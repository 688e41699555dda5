"""The configuration of `skylane cloud serve`: a YAML file whose values flags override."""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from pydantic import DirectoryPath, FilePath, model_validator

from cloud.frontend import FRONTENDS
from cloud.gateway.bind import ListenError, parse_bind_address
from shared.config import OneOf, parsed_by, setting
from shared.errors import SkylaneError, UnknownNameError
from shared.inference.table import AUTO, DEVICE_NAME, ENGINES
from shared.messages.topics import GROUP, validate_name
from shared.models.manifest import Precision
from shared.mqtt.broker_options import NodeSection

_HOST_NAME = r"[A-Za-z0-9._-]{1,255}"
_ORIGIN = r"https?://[^/\s?#@]+"  # The format of the Origin header of browsers.


def _bind_address(text: str) -> str:
    parse_bind_address(text)
    return text


def _listener(text: str) -> str:
    """Checks NAME=HOST:PORT; MQTT does not listen."""
    name, separator, address = text.partition("=")
    if not separator:
        raise ListenError(f"cannot listen at {text!r}: write NAME=HOST:PORT")
    if name == "mqtt" or name not in FRONTENDS:
        raise UnknownNameError("frontend", name, FRONTENDS.keys() - {"mqtt"})
    return f"{name}={_bind_address(address)}"


def _origin(text: str) -> str:
    if text != "*" and not re.fullmatch(_ORIGIN, text):
        raise SkylaneError(f"origin {text[:80]!r} is invalid: write https://HOST or http://HOST:PORT, without a path")
    return text


def _host_name(text: str) -> str:
    if not re.fullmatch(_HOST_NAME, text):
        raise SkylaneError(f"allowed host {text[:80]!r} is invalid: write a name without scheme, port and path")
    return text


class CloudConfig(NodeSection):
    """The worker's configuration, as in `configs/cloud.yaml`."""

    models: tuple[str, ...] = setting(
        (),
        "Model to serve (repeatable). If one of them cannot be loaded, the worker does not start; without this option, it "
        "serves all models of the repository that can be loaded.",
        "--model",
    )
    repository: Path | None = setting(None, "The model repository.", "--models")
    device: str = setting("auto", "Device of the models: auto, cpu or gpu:N.", pattern=DEVICE_NAME)
    engine: Annotated[str, OneOf("engine", ENGINES, AUTO)] | None = setting(
        None,
        "Engine that runs the models; auto: the fastest on this host with the same labels.",
        shown="from the model's manifest",
    )
    precision: Precision | None = setting(None, "Precision of the computation.", shown="from the model's manifest")
    warm_up_runs: int | None = setting(
        None, "Warm-up runs before the worker is ready.", "--warm-up", shown="from the model's manifest", ge=0, le=100
    )

    worker: Annotated[str, parsed_by(partial(validate_name, "worker"))] | None = setting(
        None, "Name of this worker.", shown="host name and process id", metavar="NAME"
    )
    group: Annotated[str, parsed_by(partial(validate_name, "group"))] = setting(
        GROUP, "Group of workers that share the frames.", metavar="NAME"
    )
    no_broker: bool = setting(False, "Serve only the gateway, without a broker.")

    http: Annotated[str, parsed_by(_bind_address)] | None = setting(
        None,
        "HOST:PORT of the HTTP gateway: TensorFlow Serving, Open Inference Protocol, images.",
        shown="none",
    )
    grpc: Annotated[str, parsed_by(_bind_address)] | None = setting(
        None,
        "HOST:PORT of the gRPC gateway: Skylane, TensorFlow Serving, Open Inference Protocol.",
        shown="none",
    )
    listen: tuple[Annotated[str, parsed_by(_listener)], ...] = setting(
        (),
        "Address of another frontend that listens (repeatable).",
        shown="none",
        metavar="NAME=HOST:PORT",
    )
    gateway_tls_cert: FilePath | None = setting(None, "Certificate of the gateway (PEM).")
    gateway_tls_key: FilePath | None = setting(None, "Private key of that certificate (PEM).")
    tokens: FilePath | None = setting(
        None, "File of the clients that may call the gateway, one NAME TOKEN per line.", shown="anyone"
    )
    images: DirectoryPath | None = setting(None, "Folder from which /api/detect reads images by path.", shown="none")
    origins: tuple[Annotated[str, parsed_by(_origin)], ...] = setting(
        (), "Origin of web pages that may call the gateway, for CORS (repeatable).", "--origin", shown="none"
    )
    allowed_hosts: tuple[Annotated[str, parsed_by(_host_name)], ...] = setting(
        (),
        "Host name that HTTP clients may use, besides IP addresses and localhost (repeatable).",
        "--allowed-host",
        shown="none",
    )
    max_message_bytes: int = setting(
        128 << 20, "Bytes of a call to the gateway, and of its reply.", ge=1 << 20, le=1 << 30
    )
    max_calls: int = setting(256, "Concurrent calls to the gateway; further ones are refused.", ge=1, le=1024)

    max_frames: int = setting(64, "Frames that may wait; further ones are refused as `overloaded`.", ge=1, le=1 << 16)
    max_bytes: int = setting(256 << 20, "Bytes of frames that may wait.", ge=1 << 20)
    max_pixels: int = setting(1 << 25, "Pixels of an image; larger ones are `rejected`.", ge=1)
    max_batch: int | None = setting(None, "Frames in a batch at most.", shown="from the model's manifest", ge=1, le=256)
    max_wait_ms: float = setting(0.0, "Milliseconds that a batch may wait for more frames.", ge=0, le=10_000)
    instances: int | None = setting(
        None,
        "Batches that a model infers at the same time.",
        shown="2 with TensorFlow on several cores, else 1",
        ge=1,
        le=64,
    )

    control: bool = setting(True, "Let operators load and unload models over the broker.", "--control/--no-control")
    operators: tuple[Annotated[str, parsed_by(partial(validate_name, "operator"))], ...] = setting(
        (),
        "Operator allowed to load and unload models (repeatable).",
        "--operator",
        shown="all that the broker admits",
    )

    threads: int = setting(0, "Threads within an operation.", shown="chosen by the engine", ge=0, le=1024)
    decoders: int = setting(1, "Decoding threads.", ge=1, le=32)
    encoders: int = setting(1, "Postprocessing threads, which make and encode results.", ge=1, le=32)
    isolate: bool = setting(False, "Run each engine in a separate process.")
    isolate_hang_s: float = setting(
        10.0, "Seconds after which the process of a hanging batch is replaced.", gt=0, le=3600
    )
    isolate_start_s: float = setting(180.0, "Seconds that opening a model in that process may take.", gt=0, le=3600)
    isolate_memory_mb: int | None = setting(
        None, "Memory limit of the data of that process in MiB.", shown="no limit", ge=64
    )

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address of each frontend that listens, by its name in FRONTENDS."""
        named = {"http": self.http, "grpc": self.grpc} | dict(each.split("=", 1) for each in self.listen)
        return {name: address for name, address in named.items() if address is not None}

    @model_validator(mode="after")
    def _endpoints_are_consistent(self) -> Self:
        if self.no_broker and not self.addresses:
            raise ValueError("`no_broker` leaves no endpoint: set `http` or `grpc`")
        if (self.gateway_tls_cert is None) != (self.gateway_tls_key is None):
            raise ValueError("`gateway_tls_cert` and `gateway_tls_key` belong together: set both or neither")
        if self.http is not None and self.http == self.grpc and not self.http.endswith(":0"):
            raise ValueError(f"`http` and `grpc` cannot share {self.http}: use two ports")
        return self
