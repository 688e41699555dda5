"""What `skylane cloud serve` can be told, by a file and by flags; a flag wins."""

from pathlib import Path

from pydantic import Field

from shared.config import Section
from shared.connection import DEFAULT_BROKER
from shared.topics import GROUP


class CloudConfig(Section):
    """`configs/cloud.yaml`."""

    broker: str = DEFAULT_BROKER
    connect_timeout_s: float = Field(default=10.0, gt=0, le=86_400)
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    worker: str | None = None  # None: the host's name and the process number.
    group: str = GROUP
    qos: int = Field(default=1, ge=0, le=1)
    models: tuple[str, ...] = ()  # Empty: all of the repository.
    repository: Path | None = None
    device: str = "auto"
    max_frames: int = Field(default=64, ge=1, le=1 << 16)
    max_bytes: int = Field(default=256 << 20, ge=1 << 20)
    max_pixels: int = Field(default=1 << 25, ge=1)
    decoders: int = Field(default=1, ge=1, le=32)
    max_wait_ms: float = Field(default=0.0, ge=0, le=10_000)
    max_batch: int | None = Field(default=None, ge=1, le=256)  # None: as each model's manifest says.
    warm_up_runs: int | None = Field(default=None, ge=0, le=100)  # None: as each model's manifest says.
