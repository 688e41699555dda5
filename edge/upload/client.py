"""The client of `skylane send` for one worker, over a transport of the vehicle; finding and checking images."""

import itertools
import queue
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import FilePath

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.pipeline import prepare
from edge.transports.opening import open_transport
from edge.transports.transport import EncodedRequest
from edge.workers.worker_directory import NoWorkerError
from shared import clock
from shared.clock import Deadline
from shared.config import OneOf, Section, parsed_by, setting
from shared.errors import SkylaneError
from shared.files import natural_path_key
from shared.imaging import image_codecs
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout
from shared.imaging.image_codecs import IMAGE_CODECS
from shared.imaging.image_files import ImageFileError, read_image_file
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import VERSION_NAME
from shared.messages.topics import FrameId, validate_name
from shared.mqtt.paho_client import CONNECT_TIMEOUT_S
from shared.network.endpoint import WORKER
from shared.stages import CLOUD_STAGES, Stage, durations_ns, stage_times
from shared.task import task_named
from shared.tasks.drawing import mark_untrained

UPLOAD_TRANSPORTS = {"grpc": "grpc", "http": "oip-rest"}  # The vehicle's transport for each choice.

_CAMERA = "send"
_OPACITY = 0.5
_ANNOTATED_QUALITY = 90  # JPEG quality.
_POLL_S = 0.2


class WorkerLostError(SkylaneError):
    """The worker cannot be reached, is late, or sends a result that cannot be decoded; another may process the image."""


class WorkerBusyError(SkylaneError):
    """The worker is overloaded; it may accept the image later."""


class ImageRefusedError(SkylaneError):
    """The worker has no result for the image."""


class UploadSettings(Section):
    """The settings of `skylane send`."""

    transport: Annotated[str, OneOf("transport", UPLOAD_TRANSPORTS)] = setting(
        "grpc", "Protocol between this machine and the workers' gRPC or HTTP endpoints."
    )
    vehicle: Annotated[str, parsed_by(partial(validate_name, "vehicle"))] = setting(
        "send",
        "Name that identifies this sender to the workers; it must match the token if they require one.",
        metavar="NAME",
    )
    model: Annotated[str, parsed_by(partial(validate_name, "model"))] = setting(
        "road-small", "Model to run on the images.", metavar="NAME"
    )
    model_version: str | None = setting(
        None, "Version of the model.", shown="the worker's current one", pattern=VERSION_NAME
    )
    concurrency: int = setting(2, "Images in progress per worker.", ge=1, le=64)
    codec: Annotated[str, OneOf("image codec", IMAGE_CODECS)] = setting("jpeg", "Encoding of images.")
    quality: int = setting(95, "JPEG quality.", ge=1, le=100)
    connect_timeout_s: float = setting(CONNECT_TIMEOUT_S, "Seconds to wait for a worker.", "--connect-timeout", ge=0.1)
    answer_timeout_s: float = setting(60.0, "Seconds to wait for a result.", "--answer-timeout", ge=0.1)
    worker_tls_ca: FilePath | None = setting(
        None, f"Certificate authority (PEM) of the workers; turns TLS on. The token is read from {WORKER}."
    )
    annotate: bool = False  # True to make a copy of each image with its result drawn on it.


@dataclass(frozen=True, slots=True)
class ImageResult:
    """A worker's result for an image."""

    result: Mapping[str, Any]  # Fields of a JSON line.
    bytes_up: int
    inference_ms: float | None  # None: not reported.
    total_ms: float  # Time from reading the file to the decoded result.
    annotated: bytes | None = None  # A JPEG.


class UploadClient:
    """A connection to one worker for one image at a time. Not thread-safe."""

    def __init__(self, address: str, settings: UploadSettings, is_needed: Callable[[], bool]) -> None:
        """Waits for a worker at HOST:PORT that serves the model, for as long as `is_needed` returns True.

        Raises:
            WorkerLostError: no such worker answers within the connection timeout.
        """
        self._settings = settings
        self._session = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        own = {"transport": UPLOAD_TRANSPORTS[settings.transport], "worker_addresses": (address,), "window": 1}
        self._config = EdgeConfig.model_validate(settings.model_dump(exclude={"concurrency", "annotate"}) | own)
        self._transport = open_transport(self._config, self._session)
        try:
            self._wait_for_card(is_needed)
        except BaseException:
            self.close()
            raise

    def upload(self, image: Path) -> ImageResult:
        """Sends an image and waits for its result.

        Raises:
            ImageRefusedError: the worker has no result for the image.
            WorkerBusyError: the worker is overloaded.
            WorkerLostError: no reply came in time, or its result cannot be decoded.
        """
        started_ns = clock.now_ns()
        settings = self._settings
        frame = Frame(read_image_file(image), Layout.RGB8, _CAMERA, 0, 0, 0, 0)
        frame_id = FrameId(settings.vehicle, _CAMERA, self._session, next(self._numbers))
        record = FrameRecord.of(frame_id, _CAMERA)
        card = self._wait_for_card(lambda: True)  # The card may have changed since the previous image.
        message = prepare(frame, record, card, self._config)
        request = self._transport.pack(message)
        reply = self._send(message, request)
        if reply.status is Status.OVERLOADED:
            raise WorkerBusyError(reply.reason)
        if reply.status is not Status.ANSWERED:
            raise ImageRefusedError(f"{reply.status}: {reply.reason}")
        task = task_named(reply.task)
        try:
            result = task.decode(reply.data, reply.codec, reply.shape)
        except SkylaneError as error:
            raise WorkerLostError(f"its {task.result_name} cannot be used: {error}") from error
        ended_ns = clock.now_ns()
        model = {"task": reply.task, "model": reply.model, "version": reply.model_version}
        return ImageResult(
            {**model, **task.json_fields(result, message.geometry, card.labels)},
            request.size,
            _inference_ms(reply),
            (ended_ns - started_ns) / 1e6,
            _annotate(record, result, card) if settings.annotate else None,
        )

    def close(self) -> None:
        """Closes the connection."""
        self._transport.close()

    def _wait_for_card(self, is_needed: Callable[[], bool]) -> ModelCard:
        """Returns the card of the model.

        Raises:
            WorkerLostError: the worker does not serve the model within the connection timeout.
        """
        deadline = Deadline.after_ms(self._settings.connect_timeout_s * 1e3)
        while True:
            left_s = deadline.remaining_s()
            try:
                return self._transport.wait_for_card(min(left_s, _POLL_S))
            except NoWorkerError as error:
                if error.is_final or not left_s or not is_needed():
                    raise WorkerLostError(str(error)) from error

    def _send(self, message: FrameMessage, request: EncodedRequest) -> ResultMessage:
        replies = self._transport.replies
        last_failure_ns = self._transport.workers.last_failure_ns()
        self._transport.send(message, request, lambda _: replies.put(None))
        deadline = Deadline.after_ms(self._settings.answer_timeout_s * 1e3)
        while not deadline.is_expired():
            try:
                reply = replies.get(timeout=_POLL_S)
            except queue.Empty:
                if self._transport.workers.last_failure_ns() > last_failure_ns:
                    raise WorkerLostError("the connection broke") from None
                continue
            if reply is None:
                raise WorkerLostError("the image could not be delivered")
            return reply.read()
        raise WorkerLostError(f"no reply within {self._settings.answer_timeout_s:g} s")


def _inference_ms(reply: ResultMessage) -> float | None:
    times = stage_times((stamp for stamp in reply.stamps if stamp.node.startswith("cloud/")), CLOUD_STAGES)
    inferred_ns = durations_ns(times).get(Stage.INFERRED)
    return None if inferred_ns is None else inferred_ns / 1e6


def _annotate(record: FrameRecord, result: object, card: ModelCard) -> bytes:
    """Returns the model's input with the result drawn on it, as JPEG."""
    assert record.image is not None
    assert record.geometry is not None
    image = to_colour(record.image, card.layout, Layout.RGB8, "bilinear")
    drawn = task_named(card.task).draw(image, result, card.labels, record.geometry, _OPACITY)
    return bytes(image_codecs.encode(mark_untrained(drawn, card), Layout.RGB8, "jpeg", _ANNOTATED_QUALITY))


_SUFFIXES = (".jpg", ".jpeg", ".png")


class NothingToUploadError(SkylaneError):
    """There are no images to upload."""


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Returns files as given, and the image files in folders and their subfolders, in the natural order of their names.

    Raises:
        NothingToUploadError: no image files were found.
    """
    files: list[Path] = []
    for path in paths:
        inside = (file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES and file.is_file())
        files += sorted(inside, key=natural_path_key) if path.is_dir() else [path]
    if not files:
        raise NothingToUploadError(f"no images found: give files, or folders that contain {', '.join(_SUFFIXES)} files")
    return list(dict.fromkeys(files))


def check_images(files: Sequence[Path], on_checked: Callable[[], None]) -> tuple[list[Path], list[ImageFileError]]:
    """Returns the valid image files, and the errors of the others.

    Each image is decoded completely, because a header does not show that a file was cut off.

    Raises:
        NothingToUploadError: no file is valid.
    """
    valid, corrupt = [], []
    for file in files:
        try:
            read_image_file(file)
            valid.append(file)
        except ImageFileError as error:
            corrupt.append(error)
        on_checked()
    if not valid:
        others = f" (and {len(corrupt) - 1} more)" if len(corrupt) > 1 else ""
        raise NothingToUploadError(f"no image to send: {corrupt[0]}{others}")
    return valid, corrupt
