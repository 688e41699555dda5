"""The pipeline: what happens to a frame at the vehicle between taken and sent."""

from dataclasses import dataclass, field

from edge.pacing.frame_queue import FrameQueue
from edge.reliability.ledger import FrameRecord, Ledger
from edge.sender import Sender, Window
from shared import clock
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import Geometry, Resize
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.stages import Stage


@dataclass(frozen=True, slots=True)
class Preparation:
    """How frames are made ready for a model."""

    card: ModelCard
    codec: str = "jpeg"
    quality: int = 85
    demosaic: str = "auto"  # "auto": binning where the frame is at least twice the model's input, else bilinear.
    resize: Resize | None = None  # None: as the model card says.
    resize_at: str = "edge"  # "cloud": the frame is sent as large as it was demosaiced, and the worker resizes it.
    want: RequestOptions = field(default_factory=RequestOptions)
    version: str | None = None  # Of the model; None: the one that a worker takes for current.


class Pipeline:
    """Takes due frames, makes them ready and hands them to the sender, one at a time."""

    def __init__(
        self, slot: FrameQueue, window: Window, sender: Sender, ledger: Ledger, preparation: Preparation
    ) -> None:
        self._slot = slot
        self._window = window
        self._sender = sender
        self._ledger = ledger
        self._preparation = preparation

    def run(self) -> None:
        """Work until the slot is closed and empty; the body of the pipeline thread."""
        # Where nobody would answer, frames are told so at once: they need no place among those that wait for answers.
        while self._window.wait_for_place(unless=self._sender.no_worker_alive):
            taken = self._slot.take()
            if taken is None:
                return
            self._send(*taken)

    def _send(self, journey: FrameRecord, frame: Frame) -> None:
        journey.times[Stage.TAKEN] = clock.now_ns()
        refusal = self._sender.refusal(journey)
        if refusal:
            self._ledger.drop(journey, refusal)
            return
        if not self._window.wait_for_place():  # Someone came back before those that are in flight had ended.
            self._ledger.drop(journey, "stopped")
            return
        try:
            message = prepare(frame, journey, self._preparation)
        except SkylaneError as error:
            self._ledger.drop(journey, f"undecodable: {error}")
            return
        self._sender.send(journey, message)


def prepare(frame: Frame, journey: FrameRecord, preparation: Preparation) -> FrameMessage:
    """Demosaic, resize and encode a frame; each stage is stamped in `journey.times`, the picture kept in `journey`.

    Where the worker resizes, a frame is demosaiced as it would be for resizing here: both give the same input.

    Raises:
        SkylaneError: the frame's pixels cannot be demosaiced or encoded as asked.
    """
    card = preparation.card
    height, width = frame.pixels.shape[:2]
    plan = geometry.plan(preparation.resize or card.resize, height, width, card.height, card.width)
    method = _method(preparation.demosaic, frame.layout, plan)
    colour = to_colour(frame.pixels, frame.layout, card.layout, method)
    journey.times[Stage.DEMOSAICED] = clock.now_ns()
    picture = colour if preparation.resize_at == "cloud" else geometry.apply(colour, plan)
    journey.times[Stage.PREPROCESSED] = clock.now_ns()
    data = image_codecs.encode(picture, card.layout, preparation.codec, preparation.quality)
    journey.times[Stage.ENCODED] = clock.now_ns()
    journey.picture, journey.geometry = picture, plan
    return FrameMessage(
        id=journey.id,
        attempt=journey.attempts + 1,
        model=card.name,
        version=preparation.version,
        layout=card.layout,
        shape=picture.shape,
        codec=preparation.codec,
        geometry=plan,
        frame_stamp_ns=journey.frame_stamp_ns,
        data=data,
        want=preparation.want,
    )


def _method(demosaic: str, layout: Layout, plan: Geometry) -> str:
    """Binning loses nothing where half the frame's resolution is still enough."""
    if demosaic != "auto":
        return demosaic
    enough = plan.crop_width >= 2 * plan.paste_width and plan.crop_height >= 2 * plan.paste_height
    return "binning" if layout.is_bayer and enough else "bilinear"
