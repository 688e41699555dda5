"""The contract and the table of upload clients, and their settings, results and errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from shared.config import OneOf, Section, parsed_by
from shared.errors import SkylaneError
from shared.imaging.image_codecs import IMAGE_CODECS
from shared.messages.topics import validate_name
from shared.mqtt.settings import CONNECT_TIMEOUT_S
from shared.registry import Entry

UPLOAD_CLIENTS = {
    "grpc": Entry("edge.upload.grpc_client:GrpcUploadClient", "transports"),
    "http": Entry("edge.upload.http_client:HttpUploadClient", "transports"),
}
CONNECT_POLL_S = 0.2  # Interval at which a client that still connects checks whether it is needed.


class WorkerLostError(SkylaneError):
    """The worker cannot be reached, or its reply is malformed; another worker may process the image."""


class WorkerBusyError(SkylaneError):
    """The worker is overloaded; it may accept the image later."""


class ImageRefusedError(SkylaneError):
    """The worker has no result for the image."""


class UploadSettings(Section):
    """The settings of `skylane send`."""

    transport: Annotated[str, OneOf("transport", UPLOAD_CLIENTS)] = "grpc"
    vehicle: Annotated[str, parsed_by(partial(validate_name, "vehicle"))] = "send"
    model: Annotated[str, parsed_by(partial(validate_name, "model"))] = "road-small"
    model_version: str | None = None  # None: the worker's current one.
    concurrency: int = Field(default=2, ge=1, le=64)  # Images in progress per worker.
    codec: Annotated[str, OneOf("image codec", IMAGE_CODECS)] = "jpeg"
    quality: int = Field(default=95, ge=1, le=100)
    connect_timeout_s: float = Field(default=CONNECT_TIMEOUT_S, ge=0.1)
    answer_timeout_s: float = Field(default=60.0, ge=0.1)
    worker_tls_ca: Path | None = None
    annotate: bool = False  # Request a copy of each image with its result drawn on.


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
