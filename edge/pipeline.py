"""The pipeline: prepares each due frame for the model, hands it to the sender, and its image to the presenter."""

import threading
from dataclasses import dataclass
from typing import Protocol

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.pacing import FrameQueue
from edge.reuse.step import ReuseStep
from edge.sender import InFlightWindow, Sender
from edge.transports.transport import NO_BROKER, NO_WORKER
from shared import clock
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import ColourImage, demosaic_method, to_colour
from shared.imaging.frames import Frame, Pixels
from shared.imaging.geometry import Geometry, Resize
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.stages import Stage


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """The image of a frame as it is sent. Read-only: several threads use it."""

    sequence: int
    image: Pixels  # H×W×C, in the colour order of the model; resized to the model's input, or of the frame's size.
    geometry: Geometry


class PreparedImages:
    """The latest prepared image of each camera. Any thread may call any method."""

    def __init__(self) -> None:
        self._images: dict[str, PreparedImage] = {}
        self._passed: dict[str, int] = {}  # Sequence of the latest finished frame by camera.
        self._changed = threading.Condition()

    def add(self, camera: str, image: PreparedImage) -> None:
        """Replaces the image of a camera by that of a later frame."""
        with self._changed:
            self._images[camera] = image

    def passed(self, camera: str, sequence: int) -> None:
        """Reports that the pipeline has finished a frame: it was sent, answered without a worker, or dropped."""
        with self._changed:
            self._passed[camera] = sequence
            self._changed.notify_all()

    def wait_for(self, camera: str, sequence: int, until_ns: int) -> PreparedImage | None:
        """Waits until the pipeline has finished a frame, or until `until_ns`; returns the frame's image, if any."""
        with self._changed:
            timeout_s = max(0, until_ns - clock.now_ns()) / 1e9
            self._changed.wait_for(lambda: self._passed.get(camera, -1) >= sequence, timeout_s)
            image = self._images.get(camera)
        return image if image is not None and image.sequence == sequence else None


class ColourSettings(Protocol):
    """The settings of a vehicle or a batch on which the input of a model depends."""

    @property
    def resize(self) -> Resize | None:
        """The configured resize of frames; None: the resize of the model card."""

    @property
    def demosaic(self) -> str:
        """A key of DEMOSAIC_METHODS, or "auto"."""


_FALLBACK_REASONS = (NO_WORKER, NO_BROKER, "window")  # Reasons to drop a frame that the local model answers instead.


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Takes due frames from the queue, one at a time, and sends those that get no result at the vehicle."""

    queue: FrameQueue
    window: InFlightWindow
    sender: Sender
    ledger: Ledger
    card: ModelCard
    config: EdgeConfig
    options: RequestOptions  # The form of the results that the worker returns.
    images: PreparedImages  # Receives every prepared image.
    reuse: ReuseStep | None = None  # With it, only a frame that must be sent needs room in the window.

    def run(self) -> None:
        """Processes frames until the queue is closed and empty, or until stopped; the body of a thread."""
        while self._wait() and (taken := self.queue.take()) is not None:
            record, frame = taken
            record.times[Stage.TAKEN] = clock.now_ns()
            reason = self._send(record, frame) if self.reuse is None else self._answer(self.reuse, record, frame)
            if reason is not None:
                self.ledger.drop(record, reason)
            self.images.passed(record.row.camera, record.id.sequence)

    def _wait(self) -> bool:
        """Waits until a frame can be taken; returns False when stopped."""
        if self.reuse is not None:
            return self.reuse.wait_for_sinks(self.window)
        # Without a responsive worker, frames are dropped at once: they need no room in the window.
        return self.window.wait_for_room(unless=self.sender.no_worker_alive)

    def _send(self, record: FrameRecord, frame: Frame) -> str | None:
        """Sends a frame; returns the reason if it cannot be sent."""
        reason = self._wait_for_worker(record)
        if reason is not None:
            return reason
        if not self.window.wait_for_room():  # A worker returned while the window was full.
            return "stopped"
        try:
            self._preprocess(frame, record)
            message = encode(record, self.card, self.config, self.options)
        except SkylaneError as error:
            return f"undecodable: {error}"
        self.sender.send(record, message)
        return None

    def _answer(self, reuse: ReuseStep, record: FrameRecord, frame: Frame) -> str | None:
        """Reuses a result, runs the local model, or sends the frame; returns the reason if none is possible."""
        if record.deadline.is_expired():
            return "deadline"
        try:
            colour = self._preprocess(frame, record)
        except SkylaneError as error:
            return f"undecodable: {error}"
        if reuse.compare(record, frame):
            return None
        local = reuse.infer(record, colour) if reuse.has_cascade else None
        if local is not None and local.is_sure:
            reuse.answer(record, local)
            return None
        reason = self._send_unless_similar(reuse, record)
        if reason not in _FALLBACK_REASONS or (local := local or reuse.infer(record, colour)) is None:
            return reason
        record.times.pop(Stage.ENCODED, None)  # Stage.INFERRED_LOCALLY comes before it in the order of the stages.
        reuse.answer(record, local)
        return None

    def _send_unless_similar(self, reuse: ReuseStep, record: FrameRecord) -> str | None:
        """Sends a preprocessed frame, or ends it if a similar one has a result now; returns why neither is possible."""
        reason = self._wait_to_send(reuse, record)
        if reason is not None:
            return reason
        try:
            message = encode(record, self.card, self.config, self.options)
        except SkylaneError as error:
            return f"undecodable: {error}"
        while reason is None and not self.window.has_room:  # Only in a closed loop.
            is_running = self.window.wait_for_room(unless=self.sender.no_worker_alive)
            reason = self._wait_to_send(reuse, record) if is_running else "stopped"
        if reuse.compare_again(record):
            return None
        if reason is None:
            self.sender.send(record, message)
        return reason

    def _wait_to_send(self, reuse: ReuseStep, record: FrameRecord) -> str | None:
        """Like `_wait_for_worker`, without waiting if a local model can answer; in an open loop, also requires room."""
        if reuse.has_local and (not self.sender.transport.is_connected or self.sender.no_worker_alive()):
            return self.sender.unsent_reason(NO_WORKER)
        reason = self._wait_for_worker(record)
        if reason is None and not reuse.waits_for_room and not self.window.has_room:
            return self.sender.unsent_reason("window")
        return reason

    def _wait_for_worker(self, record: FrameRecord) -> str | None:
        """Waits until a worker is alive, if so configured; returns the reason why a frame cannot be sent, or None."""
        if record.deadline.is_expired():
            return "deadline"
        return None if self.sender.wait_for_worker() else self.sender.unsent_reason(NO_WORKER)

    def _preprocess(self, frame: Frame, record: FrameRecord) -> ColourImage:
        """Preprocesses a frame and hands its image to the presenter; see `preprocess`."""
        colour = preprocess(frame, record, self.card, self.config)
        assert record.image is not None
        assert record.geometry is not None
        self.images.add(record.row.camera, PreparedImage(record.id.sequence, record.image, record.geometry))
        return colour


def prepare(frame: Frame, record: FrameRecord, card: ModelCard, config: EdgeConfig) -> FrameMessage:
    """Preprocesses and encodes a frame for a model; stores the time of each stage and the image in `record`.

    Raises:
        SkylaneError: the frame cannot be demosaiced or encoded as configured.
    """
    preprocess(frame, record, card, config)
    return encode(record, card, config, config.want)


def preprocess(frame: Frame, record: FrameRecord, card: ModelCard, config: EdgeConfig) -> ColourImage:
    """Demosaics and resizes a frame; stores the image to send and its geometry in `record`.

    Demosaicing does not depend on which node resizes, so the model's input is the same in both cases.

    Returns:
        The demosaiced image, in the colour order of the model and in the size that `geometry.apply` accepts.

    Raises:
        SkylaneError: the frame cannot be demosaiced as configured.
    """
    colour, plan = colour_image(frame, card, config)
    record.times[Stage.DEMOSAICED] = clock.now_ns()
    record.image = colour if config.resize_at == "cloud" else geometry.apply(colour, plan)
    record.geometry = plan
    record.times[Stage.PREPROCESSED] = clock.now_ns()
    return colour


def colour_image(frame: Frame, card: ModelCard, settings: ColourSettings) -> tuple[ColourImage, Geometry]:
    """Demosaics a frame; returns the image in the colour order of the model, and the geometry of its resize.

    Raises:
        SkylaneError: the frame cannot be demosaiced as configured.
    """
    height, width = frame.pixels.shape[:2]
    plan = geometry.plan(settings.resize or card.resize, height, width, card.height, card.width)
    method = demosaic_method(settings.demosaic, frame.layout, plan)
    return to_colour(frame.pixels, frame.layout, card.layout, method), plan


def encode(record: FrameRecord, card: ModelCard, config: EdgeConfig, options: RequestOptions) -> FrameMessage:
    """Encodes the image of a frame that was resized.

    Raises:
        SkylaneError: the image cannot be encoded as configured.
    """
    image, plan = record.image, record.geometry
    assert image is not None
    assert plan is not None
    data = image_codecs.encode(image, card.layout, config.codec, config.quality)
    record.times[Stage.ENCODED] = clock.now_ns()
    return FrameMessage(
        id=record.id,
        attempt=record.row.attempts + 1,
        model=card.name,
        version=config.model_version,
        layout=card.layout,
        shape=image.shape,
        codec=config.codec,
        geometry=plan,
        stamp_ns=record.row.frame_stamp_ns,
        data=data,
        deadline=record.deadline,
        options=options,
    )
