"""The contract of upload clients, and their settings, results and errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shared.errors import SkylaneError

CONNECT_POLL_S = 0.2  # Interval at which a client that still connects checks whether it is needed.


class WorkerLostError(SkylaneError):
    """The worker cannot be reached, or its reply is malformed; another worker may process the image."""


class WorkerBusyError(SkylaneError):
    """The worker is overloaded; it may accept the image later."""


class ImageRefusedError(SkylaneError):
    """The worker has no result for the image."""


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """Settings of an upload."""

    model: str
    version: str | None = None
    codec: str = "jpeg"
    quality: int = 95
    annotate: bool = False
    connect_timeout_s: float = 10.0
    answer_timeout_s: float = 60.0
    tls_ca: Path | None = None
    sender: str = "send"  # Name of the vehicle.


@dataclass(frozen=True, slots=True)
class ImageResult:
    """A worker's result for an image."""

    result: Mapping[str, Any]  # Fields of a JSON line.
    bytes_up: int
    inference_ms: float | None  # None: not reported.
    total_ms: float  # Time from reading the file to the decoded result.
    annotated: bytes | None = None  # A JPEG.


class UploadClient(Protocol):
    """A connection to one worker for one image at a time. Not thread-safe."""

    def upload(self, image: Path) -> ImageResult:
        """Sends an image and waits for its result.

        Raises:
            ImageRefusedError: the worker has no result for the image.
            WorkerBusyError: the worker is overloaded.
            WorkerLostError: there is no reply, or a malformed one.
        """

    def close(self) -> None:
        """Closes the connection."""
