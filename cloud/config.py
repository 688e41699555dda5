"""The settings of `skylane cloud serve`, from a YAML file and from flags, which override the file."""

import re
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from cloud.engines.placement import Precision
from cloud.engines.table import AUTO, ENGINES
from cloud.gateway.bind import ListenError, parse_bind_address
from cloud.gateway.settings import GatewaySettings
from cloud.models.manifest import NAME
from shared.config import Section
from shared.errors import suggestion
from shared.logs import LEVELS, LogFormat
from shared.messages.topics import GROUP, TopicNameError, validate_name
from shared.network.broker_options import DEFAULT_BROKER, BrokerOptions

_HOST_NAME = r"[A-Za-z0-9._-]{1,255}"
_ORIGIN = r"https?://[^/\s?#@]+"  # The format of the Origin header of browsers.


class CloudConfig(Section):
    """`configs/cloud.yaml`."""

    broker: str = DEFAULT_BROKER
    connect_timeout_s: float = Field(default=10.0, gt=0, le=86_400)
    certs: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    worker: str | None = None  # None: host name and process id.
    group: str = GROUP
    qos: int = Field(default=1, ge=0, le=1)
    models: tuple[str, ...] = ()  # Empty: all models of the repository.
    repository: Path | None = None
    device: str = "auto"
    engine: str | None = None  # None: from each manifest; "auto": the fastest on this host.
    precision: Precision | None = None  # None: from each manifest.
    threads: int = Field(default=0, ge=0, le=1024)  # Within an operation; 0: chosen by the engine.
    isolate: bool = False  # Run each engine in a separate process.
    isolate_hang_s: float = Field(default=10.0, gt=0, le=3600)  # Limit for a batch.
    isolate_start_s: float = Field(default=180.0, gt=0, le=3600)  # Limit for opening a model.
    isolate_memory_mb: int | None = Field(default=None, ge=64)  # None: no limit.
    replicas: int = Field(default=1, ge=1, le=64)  # Worker processes on this host.
    max_frames: int = Field(default=64, ge=1, le=1 << 16)
    max_bytes: int = Field(default=256 << 20, ge=1 << 20)
    max_pixels: int = Field(default=1 << 25, ge=1)
    decoders: int = Field(default=1, ge=1, le=32)
    encoders: int = Field(default=1, ge=1, le=32)
    max_wait_ms: float = Field(default=0.0, ge=0, le=10_000)
    max_batch: int | None = Field(default=None, ge=1, le=256)  # None: from each manifest.
    instances: int | None = Field(default=None, ge=1, le=64)  # Concurrent batches per model; None: by its engine.
    warm_up_runs: int | None = Field(default=None, ge=0, le=100)  # None: from each manifest.
    health_file: Path | None = None  # Updated while the worker is online.
    control: bool = True  # True if operators can load and unload models over the broker.
    operators: tuple[str, ...] = ()  # Their names; empty: all that the broker admits.
    no_broker: bool = False  # Serve only the gateway.
    http: str | None = None  # HOST:PORT of the HTTP gateway; None: disabled.
    grpc: str | None = None  # HOST:PORT of the gRPC gateway; None: disabled.
    gateway_tls_cert: Path | None = None
    gateway_tls_key: Path | None = None
    tokens: Path | None = None  # Clients of the gateway; None: anyone.
    images: Path | None = None  # Folder from which /api/detect reads images by path.
    origins: tuple[str, ...] = ()  # Origins of web pages that may call the gateway.
    allowed_hosts: tuple[str, ...] = ()  # Names in the Host header, besides localhost.
    max_message_bytes: int = Field(default=128 << 20, ge=1 << 20, le=1 << 30)
    max_calls: int = Field(default=256, ge=1, le=1024)
    log_level: str | None = None  # None: the default of `shared.logs`.
    log_format: LogFormat | None = None

    @model_validator(mode="after")
    def _has_an_endpoint(self) -> Self:
        if self.no_broker and self.http is None and self.grpc is None:
            raise ValueError("`no_broker` leaves no endpoint: set `http` or `grpc`")
        if (self.gateway_tls_cert is None) != (self.gateway_tls_key is None):
            raise ValueError("`gateway_tls_cert` and `gateway_tls_key` belong together: set both or neither")
        if self.http is not None and self.http == self.grpc and not self.http.endswith(":0"):
            raise ValueError(f"`http` and `grpc` cannot share {self.http}: use two ports")
        return self

    @field_validator("worker", "group")
    @classmethod
    def _names_fit_topics(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None:
            try:
                validate_name(str(info.field_name), name)
            except TopicNameError as error:
                raise ValueError(str(error)) from error
        return name

    @field_validator("http", "grpc")
    @classmethod
    def _endpoints_are_valid(cls, address: str | None) -> str | None:
        if address is not None:
            try:
                parse_bind_address(address)
            except ListenError as error:
                raise ValueError(str(error)) from error
        return address

    @field_validator("gateway_tls_cert", "gateway_tls_key", "tokens")
    @classmethod
    def _files_exist(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_file():  # A pipe could be read only once.
            raise ValueError(f"{path} is not a file")
        return path

    @field_validator("images")
    @classmethod
    def _images_are_a_folder(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_dir():
            raise ValueError(f"{path} is not a folder")
        return path

    @field_validator("origins")
    @classmethod
    def _origins_are_valid(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not re.fullmatch(_ORIGIN, origin):
                raise ValueError(
                    f"origin {origin[:80]!r} is invalid: write https://HOST or http://HOST:PORT, without a path"
                )
        return origins

    @field_validator("allowed_hosts")
    @classmethod
    def _allowed_hosts_are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.fullmatch(_HOST_NAME, name):
                raise ValueError(f"allowed host {name[:80]!r} is invalid: write a name without scheme, port and path")
        return names

    @field_validator("engine")
    @classmethod
    def _engine_exists(cls, engine: str | None) -> str | None:
        if engine not in (None, AUTO, *ENGINES):
            raise ValueError(f"no engine {engine!r}{suggestion(str(engine), (AUTO, *ENGINES))}")
        return engine

    @field_validator("log_level")
    @classmethod
    def _level_exists(cls, level: str | None) -> str | None:
        if level not in (None, *LEVELS):
            raise ValueError(f"no log level {level!r}: use {', '.join(LEVELS)}")
        return level

    @field_validator("operators")
    @classmethod
    def _operators_are_names(cls, operators: tuple[str, ...]) -> tuple[str, ...]:
        for operator in operators:
            if not re.fullmatch(NAME, operator):
                raise ValueError(f"operator {operator[:80]!r} is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -")
        return operators


def broker_connection(settings: CloudConfig) -> BrokerOptions:
    """The settings of the connection to the broker."""
    return BrokerOptions(**settings.model_dump(include=set(BrokerOptions.__dataclass_fields__)))


def gateway_settings(settings: CloudConfig) -> GatewaySettings | None:
    """The settings of the gateway; None if it is disabled."""
    if settings.http is None and settings.grpc is None:
        return None
    return GatewaySettings(
        http=settings.http,
        grpc=settings.grpc,
        tls_cert=settings.gateway_tls_cert,
        tls_key=settings.gateway_tls_key,
        tokens=settings.tokens,
        images=settings.images,
        origins=settings.origins,
        allowed_hosts=settings.allowed_hosts,
        max_message_bytes=settings.max_message_bytes,
        max_calls=settings.max_calls,
    )
