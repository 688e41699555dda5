"""Decoding: reads untrusted frame messages and decodes their images to the input size of the model."""

import numpy as np

from cloud.serving.admission import Admission
from cloud.serving.replies import Replier
from cloud.serving.request import EXPIRED_IN_QUEUE, TOO_LATE, Refusal, Request
from cloud.serving.served_models import ServedModel, ServedModels
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import ImageLimits
from shared.messages.frame import FrameMessage, Status, unpack_frame
from shared.messages.model_card import ModelCard, check_request_options
from shared.messages.msgpack_reader import MessageError
from shared.stages import Stage


class Decoder:
    """Takes frames out of the admission queue, checks and decodes them, and puts them into the batcher of their model."""

    def __init__(
        self,
        admission: Admission,
        replier: Replier,
        served_models: ServedModels,
        limits: ImageLimits,
    ) -> None:
        self._admission = admission
        self._replier = replier
        self._served_models = served_models
        self._limits = limits

    def run(self) -> None:
        """Decodes until admission is closed; the body of a decoding thread."""
        while (taken := self._admission.take(self._choose)) is not None:
            request, chosen = taken
            request.stamp(Stage.DEQUEUED)
            if isinstance(chosen, Refusal):
                self._refuse(request, chosen)
            elif self.decode(request, chosen):
                chosen.batcher.put(request)

    def decode(self, request: Request, served: ServedModel) -> bool:
        """Decodes a frame with a reserved slot; if that fails, refuses it, releases the slot and returns False."""
        try:
            self._decode(request, served.card)
        except SkylaneError as error:
            served.batcher.release()
            self._replier.refuse(request, Status.REJECTED, str(error))
            return False
        except Exception as error:  # noqa: BLE001  The frame fails, the worker goes on.
            served.batcher.release()
            self._replier.fail(request, "decoding", error)
            return False
        except BaseException:
            served.batcher.release()
            raise
        return True

    def _choose(self, request: Request) -> ServedModel | Refusal | None:
        """Reserves a slot for a frame and returns its model, or a refusal; None while the batcher has no free slot."""
        if refusal := request.refusal(EXPIRED_IN_QUEUE):
            return refusal
        try:
            served = self._served_models.find(request.model, request.header.version)
        except MessageError as error:
            return Refusal(Status.REJECTED, str(error))
        if not served.batcher.can_meet(request.deadline):
            served.batcher.count_refusal()
            return TOO_LATE
        return served if served.batcher.reserve() else None

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        """Refuses a frame without decoding its image; its message is read, because the reply repeats its stamps."""
        try:
            read(request)
        except MessageError:
            pass  # The reply goes to the sender in the message properties.
        except Exception as error:  # noqa: BLE001  The frame is refused in any case.
            self._replier.errors.record("decoding", error)
        self._replier.refuse(request, *refusal)

    def _decode(self, request: Request, card: ModelCard) -> None:
        message = read(request)
        if message.version != request.header.version:
            raise MessageError("the field of the model version must precede the image in the message", message.id)
        check_request_options(message.options, card)
        _check_image_shape(message, card)
        _check_mask_size(message, self._limits)
        image = image_codecs.decode(
            message.data, message.codec, message.layout, message.shape, self._limits, Layout(card.layout)
        )
        is_input = message.shape[:2] == (card.height, card.width)
        request.image = image if is_input else np.ascontiguousarray(geometry.apply(image, message.geometry))
        request.stamp(Stage.DECODED)


def read(request: Request) -> FrameMessage:
    """Unpacks the payload into `request.message`; if only the frame id is readable, sets `request.correlation`.

    Raises:
        MessageError: the message cannot be read, or does not match its topic.
    """
    if request.message is not None:
        request.payload = b""
        return request.message
    try:
        message = unpack_frame(request.payload, request.times[Stage.RECEIVED])
    except MessageError as error:
        found = error.frame_id
        if found and (found.vehicle, found.camera) == (request.vehicle, request.camera):
            request.correlation = found
        raise
    request.payload = b""
    if (message.id.vehicle, message.id.camera, message.model) != (request.vehicle, request.camera, request.model):
        # The id may belong to another vehicle, so no reply is sent to it.
        raise MessageError("vehicle, camera and model of the message must be those of its topic")
    request.message = message
    return message


def _check_image_shape(message: FrameMessage, card: ModelCard) -> None:
    """Checks that the image is the input of the model, or a whole frame that one of our resizes brings to it.

    Raises:
        MessageError: it is neither, or its geometry is not one of our resizes to this model.
    """
    given, target = message.geometry, (card.height, card.width)
    if message.shape[2:] != (3,):
        raise MessageError(f"the image has shape {list(message.shape)}: model {card.name} needs colour, H×W×3")
    if (given.target_height, given.target_width) != target:
        end = f"{given.target_height}×{given.target_width}"
        raise MessageError(f"geometry ends at {end}: the input of model {card.name} is {card.height}×{card.width}")
    if message.shape[:2] == target:
        return
    source = (given.source_height, given.source_width)
    halved = (given.source_height // 2, given.source_width // 2)  # Frames are sent at half size after binning.
    if message.shape[:2] not in (source, halved):
        raise MessageError(
            f"the image has shape {list(message.shape)}: model {card.name} needs {card.height}×{card.width}×3, "
            f"or the whole frame, {given.source_height}×{given.source_width}×3 by its geometry"
        )
    if given not in (geometry.plan(resize, *source, *target) for resize in Resize):
        raise MessageError(
            f"geometry is not the result of {', '.join(Resize)} for {given.source_height}×{given.source_width} "
            f"and model {card.name}: send the geometry that was planned for its card"
        )


def _check_mask_size(message: FrameMessage, limits: ImageLimits) -> None:
    """Limits the mask of `want.size: frame`, whose size depends only on the geometry in the message.

    Raises:
        MessageError: the mask would have more pixels than an image may have.
    """
    given = message.geometry
    if message.options.size == "frame" and given.source_height * given.source_width > limits.max_pixels:
        raise MessageError(
            f"a mask of {given.source_height}×{given.source_width} would have more than {limits.max_pixels} pixels: "
            "ask for one of the model's size"
        )
