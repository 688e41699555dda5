"""What `skylane edge play` can be told, by a file and by flags; a flag wins."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from shared.config import Section
from shared.connection import DEFAULT_BROKER
from shared.geometry import Resize

_DAY_S = 86_400.0


class EdgeConfig(Section):
    """`configs/edge.yaml`."""

    broker: str = DEFAULT_BROKER
    connect_timeout_s: float = Field(default=10.0, gt=0, le=_DAY_S)
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    vehicle: str = "vehicle"
    model: str = "road-small"
    qos: int = Field(default=1, ge=0, le=1)

    topics: tuple[str, ...] = ()
    rate: float = Field(default=1.0, ge=1e-3, le=1e6)
    loop: bool = False
    delay_s: float = Field(default=0.0, ge=0, le=_DAY_S)
    start_offset_s: float = Field(default=0.0, ge=0)
    playback_duration_s: float | None = Field(default=None, gt=0)
    frames: int | None = Field(default=None, ge=1)  # Stop after so many.
    read_ahead_queue_size: int = Field(default=16, ge=1, le=1000)
    closed_loop: bool = False

    codec: Literal["raw", "jpeg", "png", "lz4", "zstd"] = "jpeg"
    quality: int = Field(default=85, ge=1, le=100)
    demosaic: Literal["auto", "bilinear", "edge-aware", "vng", "binning"] = "auto"
    resize: Resize | None = None  # None: as the model card says.
    mask_codec: Literal["raw", "png", "rle", "zstd"] = "zstd"
    mask_size: Literal["model", "frame"] = "model"

    window: int = Field(default=4, ge=1, le=1024)
    deadline_ms: float | None = Field(default=None, gt=0, le=_DAY_S * 1e3)
    answer_timeout_s: float = Field(default=30.0, gt=0, le=_DAY_S)

    out: Path | None = None  # None: runs/<vehicle>-<session>.
    sinks: tuple[Literal["png", "video", "bag"], ...] = ("png",)
