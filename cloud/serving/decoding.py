"""Decoding: from bytes that anybody may have sent to a picture that fits the model."""

import numpy as np

from cloud.serving.admission import Admission
from cloud.serving.replies import Replier
from cloud.serving.request import CLIENT_GONE, Refusal, Request
from cloud.serving.served_models import Lane, Serving
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import ImageLimits
from shared.messages.frame import FrameMessage, Status, unpack_frame
from shared.messages.model_card import ModelCard
from shared.messages.request_options import check_request_options
from shared.stages import Stage


class Decoder:
    """Takes admitted frames, checks and decodes them and hands them to their model's batcher."""

    def __init__(
        self,
        admission: Admission,
        replier: Replier,
        serving: Serving,
        limits: ImageLimits,
    ) -> None:
        self._admission = admission
        self._replier = replier
        self._serving = serving
        self._limits = limits

    def run(self) -> None:
        """Decode until admission closes; the body of a decoding thread."""
        while (taken := self._admission.take(self._choose)) is not None:
            request, chosen = taken
            if lane := self._begin(request, chosen):
                lane.batcher.put(request)

    def _begin(self, request: Request, chosen: Lane | Refusal) -> Lane | None:
        """Decode a frame that has left the queue; the lane where it has a place, None where it was refused."""
        request.stamp(Stage.DEQUEUED)
        if isinstance(chosen, Refusal):
            self._refuse(request, *chosen)
            return None
        return chosen if self._is_decoded(request, chosen) else None

    def _choose(self, request: Request) -> Lane | Refusal | None:
        """The lane that has a place for a frame, now taken; None while it has none."""
        if request.is_expired:
            return Refusal(Status.EXPIRED, "its budget ended while it waited")
        if not request.is_wanted():
            return CLIENT_GONE
        try:
            lane = self._serving.find(request.model, request.head.version)
        except MessageError as error:
            return Refusal(Status.REJECTED, str(error))
        if not request.can_finish_in(lambda: lane.batcher.expected_latency_ns):
            return Refusal(Status.EXPIRED, "its inference would end after its budget")
        return lane if lane.batcher.reserve() else None

    def _is_decoded(self, request: Request, lane: Lane) -> bool:
        """Decode a frame for the place that it has on a lane, or refuse it and give the place back."""
        try:
            self._decode(request, lane)
        except SkylaneError as error:
            lane.batcher.release()
            self._replier.refuse(request, Status.REJECTED, str(error))
            return False
        except Exception as error:  # noqa: BLE001  The frame fails, the worker goes on.
            lane.batcher.release()
            self._replier.fail(request, "decoding", error)
            return False
        except BaseException:
            lane.batcher.release()
            raise
        return True

    def _refuse(self, request: Request, status: Status, reason: str) -> None:
        """Answer a frame without decoding it; its message is read all the same, for an answer echoes its stamps."""
        try:
            read(request)
        except MessageError:
            pass  # The refusal goes to the sender that the properties name.
        except Exception as error:  # noqa: BLE001  The frame is refused in any case.
            self._replier.errors.record("decoding", error)
        self._replier.refuse(request, status, reason)

    def _decode(self, request: Request, lane: Lane) -> None:
        message = read(request)
        if message.version != request.head.version:
            raise MessageError("the model's version stands behind the picture: tell it before", message.id)
        card = lane.card
        check_request_options(message.want, card)
        _check_size(message, card)
        _check_wanted_size(message, self._limits)
        picture = image_codecs.decode(
            message.data, message.codec, message.layout, message.shape, self._limits, Layout(card.layout)
        )
        is_input = message.shape[:2] == (card.height, card.width)
        request.picture = picture if is_input else np.ascontiguousarray(geometry.apply(picture, message.geometry))
        request.stamp(Stage.DECODED)


def read(request: Request) -> FrameMessage:
    """Read the message into the request; where only its id can be read, at least the refusal finds its way.

    Raises:
        MessageError: it cannot be read, or does not belong to the topic it came by.
    """
    if request.message is not None:  # It came through a door that reads it at once.
        request.payload = b""
        return request.message
    try:
        message = unpack_frame(request.payload)
    except MessageError as error:
        told = error.frame_id
        if told and (told.vehicle, told.camera) == (request.vehicle, request.camera):
            request.correlation = told
        raise
    request.payload = b""
    if (message.id.vehicle, message.id.camera, message.model) != (request.vehicle, request.camera, request.model):
        # Not answered under the id it claims: that may be another vehicle's.
        raise MessageError("vehicle, camera and model of the message must be those of its topic")
    request.message = message
    return message


def _check_size(message: FrameMessage, card: ModelCard) -> None:
    """A picture is the model's input, or the frame itself, which then is brought there in a way of ours alone.

    Raises:
        MessageError: it is neither, or its geometry is one that no resize to this model makes.
    """
    made, target = message.geometry, (card.height, card.width)
    if message.shape[2:] != (3,):
        raise MessageError(f"a picture of shape {list(message.shape)}: model {card.name} takes colour, H×W×3")
    if (made.target_height, made.target_width) != target:
        ends = f"{made.target_height}×{made.target_width}"
        raise MessageError(f"geometry ends at {ends}: the input of model {card.name} is {card.height}×{card.width}")
    if message.shape[:2] == target:
        return
    source = (made.source_height, made.source_width)
    halved = (made.source_height // 2, made.source_width // 2)  # By binning.
    if message.shape[:2] not in (source, halved):
        raise MessageError(
            f"a picture of shape {list(message.shape)}: model {card.name} takes {card.height}×{card.width}×3, "
            f"or the whole frame, {made.source_height}×{made.source_width}×3 by its geometry"
        )
    if made not in (geometry.plan(resize, *source, *target) for resize in Resize):
        raise MessageError(
            f"geometry is not what {', '.join(Resize)} make of {made.source_height}×{made.source_width} "
            f"for model {card.name}: send what was planned for its card"
        )


def _check_wanted_size(message: FrameMessage, limits: ImageLimits) -> None:
    """A mask of the frame's size is as large as the geometry says the frame was, whatever was sent.

    Raises:
        MessageError: it would have more pixels than a picture may.
    """
    made = message.geometry
    if message.want.size == "frame" and made.source_height * made.source_width > limits.max_pixels:
        raise MessageError(
            f"a mask of {made.source_height}×{made.source_width} would have more than {limits.max_pixels} pixels: "
            "ask for one of the model's size"
        )
