"""The configuration of `skylane edge play`: a YAML file whose values flags override."""

import secrets
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edge.pacing.arrivals import Arrivals
from edge.sinks.table import SINKS
from edge.sinks.video_codec import VideoCodec
from edge.transports.table import TRANSPORTS
from shared.config import OneOf, parsed_by
from shared.encoding.field_types import VERSION_NAME
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import IMAGE_CODECS
from shared.imaging.mask_codecs import MASK_CODECS
from shared.messages.frame import RequestOptions
from shared.messages.topics import validate_name
from shared.network.endpoint import Endpoint
from shared.network.node_section import DAY_S, NodeSection


class EdgeConfig(NodeSection):
    """The vehicle node's configuration, as in `configs/edge.yaml`."""

    transport: Annotated[str, OneOf("transport", TRANSPORTS)] = "mqtt"
    # HOST:PORT each; for transports without a broker.
    worker_addresses: tuple[Annotated[str, parsed_by(lambda text: str(Endpoint.parse(text)))], ...] = ()
    worker_tls_ca: Path | None = None
    min_bandwidth_mbps: float | None = Field(default=None, gt=0, le=1e6)  # Slowest link to expect.
    vehicle: Annotated[str, parsed_by(partial(validate_name, "vehicle"))] = "vehicle"
    model: Annotated[str, parsed_by(partial(validate_name, "model"))] = "road-small"
    model_version: str | None = Field(default=None, pattern=VERSION_NAME)  # None: the worker's current one.
    outputs: tuple[str, ...] = ()  # Output tensors to return, for models of raw tensors; empty: all.
    top_k: int | None = Field(default=None, ge=1, le=256)  # Classes of a classification; None: as the model card says.

    topics: tuple[str, ...] = ()
    rate: float = Field(default=1.0, ge=1e-3, le=1e6)
    loop: bool = False
    delay_s: float = Field(default=0.0, ge=0, le=DAY_S)
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

    codec: Annotated[str, OneOf("image codec", IMAGE_CODECS)] = "jpeg"
    quality: int = Field(default=85, ge=1, le=100)
    demosaic: Literal["auto", "bilinear", "edge-aware", "vng", "binning"] = "auto"
    resize: Resize | None = None  # None: as the model card says.
    resize_at: Literal["edge", "cloud"] = "edge"
    mask_codec: Annotated[str, OneOf("mask codec", MASK_CODECS)] = "zstd"
    mask_size: Literal["model", "frame"] = "model"

    window: int = Field(default=4, ge=1, le=1024)
    deadline_ms: float | None = Field(default=None, gt=0, le=DAY_S * 1e3)
    answer_timeout_s: float = Field(default=30.0, gt=0, le=DAY_S)
    retry: bool = True
    retry_after_ms: float | None = Field(default=None, ge=1, le=DAY_S * 1e3)  # None: derived from recent reply times.

    out: Path | None = None  # None: runs/<UTC time>-<vehicle>.
    sinks: tuple[Annotated[str, OneOf("sink", SINKS)], ...] | None = None  # None: depends on the task.
    video_codec: VideoCodec = VideoCodec.VP9  # Codec of the sink `video`.
    sample_containers: tuple[str, ...] = ()  # Docker containers on this machine whose resource use is sampled.

    @model_validator(mode="after")
    def _transport_has_its_addresses(self) -> Self:
        if TRANSPORTS[self.transport].needs_addresses:
            if not self.worker_addresses:
                raise ValueError(
                    f"`transport`: {self.transport} needs `worker_addresses`, HOST:PORT of one worker or more"
                )
        elif self.worker_addresses or self.worker_tls_ca:
            raise ValueError(
                f"`worker_addresses`: with {self.transport} the broker finds the workers: leave the addresses out, or set "
                "`transport`"
            )
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
