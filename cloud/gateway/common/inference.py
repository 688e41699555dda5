"""Inference calls, independent of the protocol: common to TensorFlow Serving and the Open Inference Protocol.

A call has one input tensor: `input` (uint8 N×H×W×3 in the model's size and colour order), or `image_bytes` (N encoded
images: JPEG or PNG of any size, or pixels of the model's size compressed with LZ4 or zstd). Each image becomes a frame
of its own. The outputs are the model's output tensors, stacked over the images, or `result_bytes`: N packed results, as
vehicles receive them.

A vehicle's call has one image and a frame message without data; its reply has a result message.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cloud.gateway.common.tensors import IMAGES, INPUT, RESULTS, SizeBudget, Tensor
from cloud.serving.errors import ApiError, ErrorCode, InvalidError, converting_errors
from cloud.serving.submission import Answered, Submission
from shared.clock import Deadline
from shared.compression import Buffer
from shared.imaging import geometry, image_codecs
from shared.imaging.image_header import read_header
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.topics import sanitize_name
from shared.stages import CLOUD_STAGES, durations_ns, stage_times
from shared.task import task_named


@dataclass(frozen=True, slots=True)
class CallTerms:
    """The sender of a call, and the limits of its reply."""

    frontend: str  # Protocol and transport, such as "oip-rest"; the camera name in the ids of the call's frames.
    caller: str  # The name under which admission accounts the frames.
    received_ns: int
    max_reply_bytes: int
    deadline: Deadline = Deadline.NEVER
    frame: FrameMessage | None = None  # A vehicle's frame message, without data.


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """An inference call."""

    terms: CallTerms
    model: str
    inputs: Mapping[str, Tensor]
    version: str | None = None
    outputs: tuple[str, ...] = ()  # Empty: all outputs of the model.
    # The codec of `image_bytes`; None, "jpeg" and "png": JPEG or PNG, detected from each image.
    codec: str | None = None
    mask_codec: str = "png"  # The codec of masks in `result_bytes`.


class InferenceReply(NamedTuple):
    """The reply to an inference call."""

    card: ModelCard
    outputs: Mapping[str, Tensor]  # The first axis is the image.
    first: ResultMessage  # The result message of the first image, without its data.


@dataclass(frozen=True, slots=True)
class PendingInference:
    """An inference call whose frames are being processed."""

    submission: Submission
    card: ModelCard  # The model that was served when the frames were submitted.
    heads: tuple[str, ...]  # Names of the requested model outputs; empty: `result_bytes` is requested.
    futures: tuple[Future[Answered], ...]  # One for each image.
    max_reply_bytes: int
    is_vehicle: bool

    def reply(self) -> InferenceReply:
        """Builds the reply; waits until all futures are done.

        A vehicle receives the status of its frame in the mask message, not as an error.

        Raises:
            ApiError: an image has no result, or the results together are too large.
        """
        answers = [future.result() for future in self.futures]
        first = answers[0].message
        if self.is_vehicle:
            outputs: dict[str, Tensor] = {RESULTS: [first.data]} if first.status is Status.ANSWERED else {}
            return InferenceReply(self.card, outputs, replace(first, data=b""))
        for answer in answers:
            if answer.message.status is not Status.ANSWERED:
                raise ApiError.from_status(answer.message.status, answer.message.reason)
        card = self._answering_card(answers)
        budget = SizeBudget(self.max_reply_bytes)  # Checked before the results are joined.
        for answer in answers:
            outputs_of_image = answer.outputs or {}
            budget.charge(len(answer.message.data) + sum(outputs_of_image[head].nbytes for head in self.heads))
        if not self.heads:
            results = [answer.message.data for answer in answers]
            return InferenceReply(card, {RESULTS: results}, replace(first, data=b""))
        return InferenceReply(card, {head: _stack(answers, head) for head in self.heads}, first)

    def cancel(self) -> None:
        """Cancels the frames whose processing has not begun."""
        for future in self.futures:
            future.cancel()

    def _answering_card(self, answers: Sequence[Answered]) -> ModelCard:
        """The card of the version that answered, which may differ from the one at submission; raises if several did, or if outputs are missing."""
        versions = {(answer.message.model_version, answer.message.model_sha256) for answer in answers}
        if versions == {(self.card.version, self.card.sha256)}:
            return self.card
        lacks = any(answer.outputs is not None and not answer.outputs.keys() >= {*self.heads} for answer in answers)
        if lacks or len(versions) > 1:
            raise ApiError(ErrorCode.BUSY, f"the version of {self.card.name} changed during the call: call again")
        return self.submission.find(self.card.name, answers[0].message.model_version).card


def start_inference(submission: Submission, call: InferenceCall) -> PendingInference:
    """Submits each image of a call as a frame.

    Raises:
        ApiError: the call is invalid, or the worker does not serve the model.
    """
    served = submission.find(call.model, call.version)
    card, terms = served.card, call.terms
    images = _images(call, card)
    heads: tuple[str, ...] = ()
    if terms.frame is not None:
        if len(images) != 1:
            raise InvalidError(f"{len(images)} images with one frame message: send one image")
        messages = [_vehicle_frame(terms.frame, images[0], call)]
    else:
        if not images:
            raise InvalidError("no image: send at least one")
        if len(images) > submission.admission.max_frames:
            raise InvalidError(
                f"{len(images)} images in one call: send at most {submission.admission.max_frames} with each call"
            )
        heads = _requested_heads(call.outputs, tuple(served.model.manifest.heads))
        messages = [_frame_message(submission, call, card, image) for image in images]
    futures = tuple(
        submission.put(message, received_ns=terms.received_ns, max_reply_bytes=terms.max_reply_bytes, heads=bool(heads))
        for message in messages
    )
    return PendingInference(submission, card, heads, futures, terms.max_reply_bytes, is_vehicle=terms.frame is not None)


def stages_ms(message: ResultMessage) -> dict[str, float]:
    """Returns the duration of each stage of a frame in the worker, in milliseconds."""
    times = stage_times((stamp for stamp in message.stamps if stamp.node.startswith("cloud/")), CLOUD_STAGES)
    return {stage.value: duration_ns / 1e6 for stage, duration_ns in durations_ns(times).items()}


def server_timing(message: ResultMessage) -> str:
    """Returns the stage durations in the format of HTTP's `Server-Timing` header."""
    return ", ".join(f"{stage};dur={duration_ms:.3f}" for stage, duration_ms in stages_ms(message).items())


def _vehicle_frame(frame: FrameMessage, data: Buffer, call: InferenceCall) -> FrameMessage:
    """Adds the image to a vehicle's frame message."""
    caller = call.terms.caller
    if frame.id.vehicle != caller:
        raise ApiError(
            ErrorCode.FORBIDDEN, f"the frame belongs to {frame.id.vehicle}: {caller} may send its own frames only"
        )
    if frame.model != call.model or call.version not in (None, frame.version):
        named = [" ".join(filter(None, each)) for each in ((frame.model, frame.version), (call.model, call.version))]
        raise InvalidError(f"the frame is for {named[0]}, the call for {named[1]}: send the same model")
    return replace(frame, data=data)


def _images(call: InferenceCall, card: ModelCard) -> Sequence[Buffer]:
    """The bytes of each image of a call."""
    shape = f"{card.height}, {card.width}, 3"
    if len(call.inputs) != 1 or not call.inputs.keys() <= {INPUT, IMAGES}:
        given = ", ".join(sorted(name[:40] for name in call.inputs)) or "none"
        raise InvalidError(f"inputs {given}: send either {INPUT} (uint8 [n, {shape}]) or {IMAGES} (strings [n])")
    ((name, tensor),) = call.inputs.items()
    if name == IMAGES:
        if isinstance(tensor, np.ndarray):
            raise InvalidError(f"{IMAGES} is {tensor.dtype.name}: send byte strings, one per image")
        return tensor
    if not isinstance(tensor, np.ndarray) or tensor.dtype != np.uint8:
        given = tensor.dtype.name if isinstance(tensor, np.ndarray) else "strings"
        raise InvalidError(f"{INPUT} is {given}: send uint8, [n, {shape}]")
    if tensor.ndim != 4 or tensor.shape[1:] != (card.height, card.width, 3):  # N×H×W×3.
        raise InvalidError(f"{INPUT} has shape {list(tensor.shape)}: send [n, {shape}]")
    return [np.ascontiguousarray(image).reshape(-1).data for image in tensor]


def _frame_message(submission: Submission, call: InferenceCall, card: ModelCard, data: Buffer) -> FrameMessage:
    """Builds the frame message of an image."""
    height, width = card.height, card.width
    if IMAGES in call.inputs and call.codec in (None, "jpeg", "png"):
        with converting_errors(ErrorCode.UNPROCESSABLE):
            header = read_header(data)
            codec, height, width = header.kind, header.height, header.width
            plan = geometry.plan(card.resize, height, width, card.height, card.width)
    else:
        codec = "raw" if INPUT in call.inputs else str(call.codec)
        plan = geometry.plan(card.resize, height, width, height, width)
    if codec not in image_codecs.IMAGE_CODECS:
        known = ", ".join(image_codecs.IMAGE_CODECS)
        raise InvalidError(f"no image codec {codec[:40]!r}: choose one of {known}")
    return FrameMessage(
        id=submission.new_id(sanitize_name(call.terms.caller), call.terms.frontend),
        model=call.model,
        version=call.version,
        layout=card.layout,
        shape=(height, width, 3),
        codec=codec,
        geometry=plan,
        stamp_ns=0,
        data=data,
        deadline=call.terms.deadline,
        options=RequestOptions(mask_codec=call.mask_codec if task_named(card.task).has_shape else "raw"),
    )


def _requested_heads(outputs: tuple[str, ...], heads: tuple[str, ...]) -> tuple[str, ...]:
    """The requested outputs of the model; empty if the packed results are requested."""
    if outputs == (RESULTS,):
        return ()
    unknown = [name for name in outputs if name not in heads]
    if unknown:
        raise InvalidError(f"no output {', '.join(unknown)[:200]}: request {', '.join(heads)}, or {RESULTS} alone")
    return outputs or heads


def _stack(answers: Sequence[Answered], head: str) -> npt.NDArray[Any]:
    """Stacks one output of all images; a single image is not copied."""
    values = [answer.outputs[head] for answer in answers if answer.outputs is not None]
    return values[0][np.newaxis] if len(values) == 1 else np.stack(values)
