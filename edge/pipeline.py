"""The pipeline: prepares each due frame for the model, hands it to the sender, and its image to the presenter."""

import threading
from dataclasses import dataclass
from typing import Any, Protocol

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.pacing import FrameQueue
from edge.sender import InFlightWindow, Sender
from shared import clock
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import ColourImage, demosaic_method, to_colour
from shared.imaging.frames import Frame, Layout, Pixels
from shared.imaging.geometry import Geometry, Resize
from shared.imaging.image_files import ImageArray
from shared.imaging.opencv import cv2
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard
from shared.stages import Stage


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """The image of a frame as it is sent; nobody changes it any more."""

    sequence: int
    image: Pixels  # In the colour order of the model; of the size of the model's input, or as demosaiced.
    geometry: Geometry


class PreparedImages:
    """The latest prepared image of each camera. Any thread may call any method."""

    def __init__(self) -> None:
        self._images: dict[str, PreparedImage] = {}
        self._passed: dict[str, int] = {}  # By camera, the latest frame that the pipeline has finished.
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
        """Waits until the pipeline has finished a frame, or until a time; returns its image if there is one."""
        with self._changed:
            timeout_s = max(0, until_ns - clock.now_ns()) / 1e9
            self._changed.wait_for(lambda: self._passed.get(camera, -1) >= sequence, timeout_s)
            image = self._images.get(camera)
        return image if image is not None and image.sequence == sequence else None


class ColourSettings(Protocol):
    """The settings that the input of a model depends on: those of a vehicle, or of a batch."""

    @property
    def resize(self) -> Resize | None:
        """How frames are resized; None: as the card says."""

    @property
    def demosaic(self) -> str:
        """A key of DEMOSAIC_METHODS, or "auto"."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Takes due frames from the queue, prepares them and hands them to the sender, one at a time."""

    queue: FrameQueue
    window: InFlightWindow
    sender: Sender
    ledger: Ledger
    card: ModelCard
    config: EdgeConfig
    images: PreparedImages  # Receives every prepared image.

    def run(self) -> None:
        """Works until the queue is closed and empty; the body of a thread."""
        # Without a responsive worker, frames are dropped at once: they need no room in the window.
        while self.window.wait_for_room(unless=self.sender.no_worker_alive):
            taken = self.queue.take()
            if taken is None:
                return
            record, frame = taken
            self._process(record, frame)
            self.images.passed(record.camera, record.id.sequence)

    def _process(self, record: FrameRecord, frame: Frame) -> None:
        record.times[Stage.TAKEN] = clock.now_ns()
        refusal = self.sender.refusal(record)
        if refusal:
            self.ledger.drop(record, refusal)
            return
        if not self.window.wait_for_room():  # A worker returned while the window was full.
            self.ledger.drop(record, "stopped")
            return
        try:
            self._preprocess(frame, record)
            message = encode(record, self.card, self.config)
        except SkylaneError as error:
            self.ledger.drop(record, f"undecodable: {error}")
            return
        self.sender.send(record, message)

    def _preprocess(self, frame: Frame, record: FrameRecord) -> ColourImage:
        """Preprocesses a frame and hands its image to the presenter; see `preprocess`."""
        colour = preprocess(frame, record, self.card, self.config)
        assert record.image is not None
        assert record.geometry is not None
        self.images.add(record.camera, PreparedImage(record.id.sequence, record.image, record.geometry))
        return colour


def prepare(frame: Frame, record: FrameRecord, card: ModelCard, config: EdgeConfig) -> FrameMessage:
    """Preprocesses and encodes a frame for a model; stores the time of each stage and the image in `record`.

    Raises:
        SkylaneError: the frame cannot be demosaiced or encoded as configured.
    """
    preprocess(frame, record, card, config)
    return encode(record, card, config)


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


def rgb_input(image: Pixels, plan: Geometry, layout: Layout) -> ImageArray:
    """Returns the input of a model as RGB.

    `image`: in the colour order `layout`; of the size of the model's input, or as demosaiced.
    """
    shown: Any = image
    if image.shape[:2] != (plan.target_height, plan.target_width):
        shown = geometry.apply(image, plan)
    rgb: ImageArray = cv2.cvtColor(shown, cv2.COLOR_BGR2RGB) if layout is Layout.BGR8 else shown
    return rgb


def encode(record: FrameRecord, card: ModelCard, config: EdgeConfig) -> FrameMessage:
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
        attempt=record.attempts + 1,
        model=card.name,
        version=config.model_version,
        layout=card.layout,
        shape=image.shape,
        codec=config.codec,
        geometry=plan,
        stamp_ns=record.stamp_ns,
        data=data,
        deadline=record.deadline,
        options=config.want,
    )
