"""The configuration of `skylane edge play`: a YAML file whose values flags override."""

import secrets
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from edge.pacing.replay import Arrivals
from edge.sinks.sink import SINKS
from edge.sinks.video_codec import VideoCodec
from shared.config import Section
from shared.imaging.geometry import Resize
from shared.logs import LEVELS, LogFormat
from shared.messages.frame import RequestOptions
from shared.messages.model_card import VERSION_NAME
from shared.messages.topics import TopicNameError, validate_name
from shared.network.broker_options import DEFAULT_BROKER
from shared.network.endpoint import Endpoint, EndpointError

_DAY_S = 86_400.0


def _known_sink(name: str) -> str:
    if name not in SINKS:
        raise ValueError(f"no sink {name[:40]!r}: use {', '.join(SINKS)}")
    return name


class EdgeConfig(Section):
    """The vehicle node's configuration, as in `configs/edge.yaml`."""

    transport: Literal["mqtt", "grpc", "tfs-grpc", "oip-grpc", "oip-rest", "tfs-rest"] = "mqtt"
    worker_addresses: tuple[str, ...] = ()  # HOST:PORT each; for every transport except MQTT.
    worker_tls_ca: Path | None = None
    broker: str = DEFAULT_BROKER
    connect_timeout_s: float = Field(default=10.0, gt=0, le=_DAY_S)
    certs: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    min_bandwidth_mbps: float | None = Field(default=None, gt=0, le=1e6)  # Slowest link to expect.
    vehicle: str = "vehicle"
    model: str = "road-small"
    model_version: str | None = Field(default=None, pattern=VERSION_NAME)  # None: the worker's current one.
    outputs: tuple[str, ...] = ()  # Output tensors to return, for models of raw tensors; empty: all.
    top_k: int | None = Field(default=None, ge=1, le=256)  # Classes of a classification; None: as the model card says.
    qos: int = Field(default=1, ge=0, le=1)

    topics: tuple[str, ...] = ()
    rate: float = Field(default=1.0, ge=1e-3, le=1e6)
    loop: bool = False
    delay_s: float = Field(default=0.0, ge=0, le=_DAY_S)
    start_offset_s: float = Field(default=0.0, ge=0)
    playback_duration_s: float | None = Field(default=None, gt=0)
    frames: int | None = Field(default=None, ge=1)  # Maximum number of frames; None: all.
    read_ahead_queue_size: int = Field(default=16, ge=1, le=1000)
    closed_loop: bool = False
    arrivals: Arrivals = Arrivals.SOURCE
    arrival_rate_hz: float | None = Field(default=None, ge=1e-3, le=1e6)  # All cameras together.
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)  # Seed of Poisson arrivals; None: random.
    queue: int = Field(default=1, ge=1, le=1 << 16)
    burst: int = Field(default=1, ge=1)

    codec: Literal["raw", "jpeg", "png", "lz4", "zstd"] = "jpeg"
    quality: int = Field(default=85, ge=1, le=100)
    demosaic: Literal["auto", "bilinear", "edge-aware", "vng", "binning"] = "auto"
    resize: Resize | None = None  # None: as the model card says.
    resize_at: Literal["edge", "cloud"] = "edge"
    mask_codec: Literal["raw", "png", "rle", "lz4", "zstd"] = "zstd"
    mask_size: Literal["model", "frame"] = "model"

    window: int = Field(default=4, ge=1, le=1024)
    deadline_ms: float | None = Field(default=None, gt=0, le=_DAY_S * 1e3)
    answer_timeout_s: float = Field(default=30.0, gt=0, le=_DAY_S)
    retry: bool = True
    retry_after_ms: float | None = Field(default=None, ge=1, le=_DAY_S * 1e3)  # None: derived from recent reply times.

    out: Path | None = None  # None: runs/<UTC time>-<vehicle>.
    sinks: tuple[Annotated[str, AfterValidator(_known_sink)], ...] | None = None  # None: depends on the task.
    video_codec: VideoCodec = VideoCodec.VP9  # Codec of the sink `video`.
    health_file: Path | None = None  # Touched while the vehicle is connected.
    sample_containers: tuple[str, ...] = ()  # Docker containers on this machine whose resource use is sampled.
    log_level: str | None = None  # None: the default of `shared.logs`.
    log_format: LogFormat | None = None  # None: the default of `shared.logs`.

    @field_validator("vehicle", "model")
    @classmethod
    def _names_fit_topics(cls, name: str, info: ValidationInfo) -> str:
        try:
            return validate_name(str(info.field_name), name)
        except TopicNameError as error:
            raise ValueError(str(error)) from error

    @field_validator("log_level")
    @classmethod
    def _level_exists(cls, level: str | None) -> str | None:
        if level not in (None, *LEVELS):
            raise ValueError(f"no log level {level!r}: use {', '.join(LEVELS)}")
        return level

    @field_validator("worker_addresses")
    @classmethod
    def _addresses_are_endpoints(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(str(Endpoint.parse(address)) for address in addresses)
        except EndpointError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _transport_has_its_addresses(self) -> Self:
        if self.transport == "mqtt" and (self.worker_addresses or self.worker_tls_ca):
            raise ValueError(
                "`worker_addresses`: with MQTT the broker finds the workers: leave the addresses out, or set `transport`"
            )
        if self.transport != "mqtt" and not self.worker_addresses:
            raise ValueError(f"`transport`: {self.transport} needs `worker_addresses`, HOST:PORT of one worker or more")
        return self

    @model_validator(mode="after")
    def _playback_is_consistent(self) -> Self:
        scheduled = self.arrivals is not Arrivals.SOURCE
        if scheduled and self.arrival_rate_hz is None:
            raise ValueError(f"`arrivals`: {self.arrivals} needs `arrival_rate_hz`, the number of frames per second")
        if not scheduled and self.arrival_rate_hz is not None:
            raise ValueError(
                "`arrival_rate_hz`: the times of the source are the schedule: set `arrivals`, or use `rate` instead"
            )
        if scheduled and self.rate != 1.0:
            raise ValueError(
                f"`rate`: {self.arrivals} arrivals follow `arrival_rate_hz`, not the source: leave `rate` out"
            )
        if scheduled and self.closed_loop:
            raise ValueError(
                f"`arrivals`: a closed loop waits for answers, not for {self.arrivals} arrivals: choose one"
            )
        if self.queue > 1 and self.closed_loop:
            raise ValueError("`queue`: a closed loop drops no frame, so none waits: leave `queue` out")
        if self.retry_after_ms is not None and not self.retry:
            raise ValueError("`retry_after_ms`: every frame is sent only once (see `retry`): leave one of the two out")
        if self.burst > 1 and not self.closed_loop:
            raise ValueError("`burst`: only a closed loop sends bursts: add `closed_loop`")
        return self

    @property
    def want(self) -> RequestOptions:
        """The form of the results that the worker returns."""
        return RequestOptions(self.mask_codec, self.mask_size, self.top_k, self.outputs)

    def seeded(self) -> Self:
        """Returns the configuration with a random seed if Poisson arrivals have none."""
        if self.arrivals is not Arrivals.POISSON or self.seed is not None:
            return self
        return self.model_copy(update={"seed": secrets.randbits(32)})
