"""A call: what TensorFlow Serving's doors and the Open Inference Protocol's have in common.

Pictures come in as one tensor, `input` (uint8 N×H×W×3, the model's size and colour order) or `image_bytes` (N encoded
pictures of any size, JPEG or PNG, or pixels of the model's size folded by LZ4 or zstd). Each picture is a frame of its
own inside the worker; what comes back is stacked: the model's outputs by name, as the direct call gives them, or
`result_bytes`, N results packed as a vehicle gets them.

A vehicle's call brings a frame message without data beside its one picture, and is answered with a mask message.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.submission import Answered, Door
from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging import geometry, image_codecs
from shared.imaging.image_header import read_header
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage, Status
from shared.messages.model_card import ModelCard, Task
from shared.messages.topics import sanitize_name
from shared.stages import CLOUD_STAGES, durations_ns, stage_times

INPUT = "input"
IMAGES = "image_bytes"
RESULTS = "result_bytes"

Tensor = npt.NDArray[Any] | Sequence[Buffer]  # Numbers, or byte strings.


@dataclass(frozen=True, slots=True)
class Call:
    """What a caller asks for, in the words of no protocol."""

    door: str  # Which face it came by, such as "oip-rest": the camera's name in the ids of its frames.
    caller: str  # The vehicle's name, or what stands for it: admission is fair by it.
    model: str
    inputs: Mapping[str, Tensor]
    received_ns: int
    max_reply_bytes: int  # Bytes that the way back takes.
    version: str | None = None
    outputs: tuple[str, ...] = ()  # Empty: all of the model's.
    codec: str | None = None  # Of `image_bytes`; None: told by each picture's first bytes.
    mask_codec: str = "png"  # Of `result_bytes`.
    budget_ms: int | None = None
    frame: FrameMessage | None = None  # A vehicle's own, without data.


class Reply(NamedTuple):
    """What a call is answered with."""

    card: ModelCard
    outputs: Mapping[str, Tensor]  # N first.
    first: ResultMessage  # Of the first picture; a vehicle's answer, without data.


@dataclass(frozen=True, slots=True)
class Asked:
    """A call under way: one future a picture."""

    door: Door
    card: ModelCard  # As it was when the pictures were handed in.
    heads: tuple[str, ...]  # Empty: `result_bytes` is wanted.
    futures: tuple[Future[Answered], ...]
    largest: int  # Bytes that the answers may have together.
    is_vehicle: bool

    def reply(self) -> Reply:
        """The answer, once all futures are done.

        Raises:
            RefusedError: a picture was not answered, or all answers together are too large. A vehicle's frame is told
                what became of it instead.
        """
        answers = [future.result() for future in self.futures]
        first = answers[0].message
        if self.is_vehicle:
            outputs: dict[str, Tensor] = {RESULTS: [first.data]} if first.status is Status.ANSWERED else {}
            return Reply(self.card, outputs, replace(first, data=b""))
        for answer in answers:
            if answer.message.status is not Status.ANSWERED:
                raise RefusedError.by_status(answer.message.status, answer.message.reason)
        card = self._answering(answers)
        self._check_size(answers)
        if not self.heads:
            return Reply(card, {RESULTS: [answer.message.data for answer in answers]}, replace(first, data=b""))
        return Reply(card, {head: _stacked(answers, head) for head in self.heads}, first)

    def _answering(self, answers: Sequence[Answered]) -> ModelCard:
        """The card of the version that answered: another one may have taken over since the pictures came.

        Raises:
            RefusedError: several did, or one that has not these outputs, or is gone already.
        """
        versions = {(answer.message.model_version, answer.message.model_sha256) for answer in answers}
        if versions == {(self.card.version, self.card.sha256)}:
            return self.card
        lacks = any(answer.outputs is not None and not answer.outputs.keys() >= {*self.heads} for answer in answers)
        if lacks or len(versions) > 1:
            raise RefusedError(Kind.BUSY, f"{self.card.name} became another version while it was asked: ask again")
        return self.door.card(self.card.name, answers[0].message.model_version)

    def _check_size(self, answers: Sequence[Answered]) -> None:
        """Check that they fit the way back together, as each of them does, before they are put together."""
        outputs = (answer.outputs[head] for answer in answers if answer.outputs is not None for head in self.heads)
        size = sum(values.nbytes for values in outputs) + sum(len(answer.message.data) for answer in answers)
        if size > self.largest:
            raise RefusedError(
                Kind.UNPROCESSABLE,
                f"an answer of {size} bytes: at most {self.largest} are sent; ask for fewer outputs or pictures",
            )

    def cancel(self) -> None:
        """Nobody waits for it any more: what has not begun need not be done."""
        for future in self.futures:
            future.cancel()


def ask(door: Door, call: Call) -> Asked:
    """Hand a call's pictures in, each as a frame.

    Raises:
        RefusedError: it cannot be read; the message says what was given and what is expected.
    """
    lane = door.lane(call.model, call.version)
    card = lane.card
    data = _data(call, card)
    if call.frame is not None:
        if len(data) != 1:
            raise RefusedError(Kind.INVALID, f"{len(data)} pictures come with one frame message: send one")
        future = _put(door, call, _own(call.frame, data[0], call), heads=False)
        return Asked(door, card, (), (future,), call.max_reply_bytes, is_vehicle=True)
    if not data:
        raise RefusedError(Kind.INVALID, "no picture: send at least one")
    if len(data) > door.max_images:
        raise RefusedError(
            Kind.INVALID, f"{len(data)} pictures in one call: at most {door.max_images} are taken; divide them"
        )
    heads = _wanted(call.outputs, tuple(lane.model.manifest.heads))
    messages = [_message(door, call, card, each) for each in data]  # All are read before the first is handed in.
    futures = tuple(_put(door, call, message, heads=bool(heads)) for message in messages)
    return Asked(door, card, heads, futures, call.max_reply_bytes, is_vehicle=False)


def stages_ms(message: ResultMessage) -> dict[str, float]:
    """How long each of the worker's stages of a frame took, in milliseconds."""
    times = stage_times((stamp for stamp in message.stamps if stamp.node.startswith("cloud/")), CLOUD_STAGES)
    return {stage.value: taken / 1e6 for stage, taken in durations_ns(times).items()}


def server_timing(message: ResultMessage) -> str:
    """The same as HTTP's `Server-Timing` has it."""
    return ", ".join(f"{stage};dur={taken:.3f}" for stage, taken in stages_ms(message).items())


def _put(door: Door, call: Call, message: FrameMessage, *, heads: bool) -> Future[Answered]:
    return door.put(
        message,
        received_ns=call.received_ns,
        max_reply_bytes=call.max_reply_bytes,
        heads=heads,
    )


def _own(frame: FrameMessage, data: Buffer, call: Call) -> FrameMessage:
    """A vehicle's frame with its picture.

    Raises:
        RefusedError: it is another's, or for another model.
    """
    if frame.id.vehicle != call.caller:
        raise RefusedError(Kind.FORBIDDEN, f"the frame is {frame.id.vehicle}'s: {call.caller} may send its own only")
    if frame.model != call.model or call.version not in (None, frame.version):
        told = [" ".join(filter(None, each)) for each in ((frame.model, frame.version), (call.model, call.version))]
        raise RefusedError(Kind.INVALID, f"the frame is for {told[0]}, the call for {told[1]}: they must agree")
    return replace(frame, data=data)


def _data(call: Call, card: ModelCard) -> Sequence[Buffer]:
    """Each picture's bytes."""
    if len(call.inputs) != 1 or not call.inputs.keys() <= {INPUT, IMAGES}:
        given = ", ".join(sorted(name[:40] for name in call.inputs)) or "none"
        raise RefusedError(
            Kind.INVALID, f"inputs {given}: give one, {INPUT} (uint8 [n, {_size(card)}]) or {IMAGES} (strings [n])"
        )
    ((name, tensor),) = call.inputs.items()
    if name == IMAGES:
        if isinstance(tensor, np.ndarray):
            raise RefusedError(Kind.INVALID, f"{IMAGES} is {tensor.dtype.name}: send byte strings, one a picture")
        return tensor
    if not isinstance(tensor, np.ndarray) or tensor.dtype != np.uint8:
        given = tensor.dtype.name if isinstance(tensor, np.ndarray) else "strings"
        raise RefusedError(Kind.INVALID, f"{INPUT} is {given}: send uint8, [n, {_size(card)}]")
    if tensor.ndim != 4 or tensor.shape[1:] != (card.height, card.width, 3):  # noqa: PLR2004  N×H×W×3.
        raise RefusedError(Kind.INVALID, f"{INPUT} has shape {list(tensor.shape)}: send [n, {_size(card)}]")
    return [np.ascontiguousarray(picture).reshape(-1).data for picture in tensor]


def _message(door: Door, call: Call, card: ModelCard, data: Buffer) -> FrameMessage:
    """A caller's picture as a frame of its own.

    Raises:
        RefusedError: it is no picture of a kind that is read here.
    """
    codec, height, width = "raw", card.height, card.width
    if IMAGES in call.inputs and call.codec in (None, "jpeg", "png"):
        try:
            header = read_header(data)
            codec, height, width = header.kind, header.height, header.width
            plan = geometry.plan(card.resize, height, width, card.height, card.width)
        except SkylaneError as error:
            raise RefusedError(Kind.UNPROCESSABLE, str(error)) from error
    else:
        codec = "raw" if INPUT in call.inputs else str(call.codec)
        plan = geometry.plan(card.resize, height, width, height, width)
    if codec not in image_codecs.IMAGE_CODECS:
        known = ", ".join(image_codecs.IMAGE_CODECS)
        raise RefusedError(Kind.INVALID, f"no image codec {codec[:40]!r}: choose one of {known}")
    return FrameMessage(
        id=door.new_id(sanitize_name(call.caller), call.door),
        model=call.model,
        version=call.version,
        layout=card.layout,
        shape=(height, width, 3),
        codec=codec,
        geometry=plan,
        frame_stamp_ns=0,
        data=data,
        budget_ms=call.budget_ms,
        want=RequestOptions(mask_codec=call.mask_codec if card.task is Task.SEGMENTATION else "raw"),
    )


def _wanted(outputs: tuple[str, ...], heads: tuple[str, ...]) -> tuple[str, ...]:
    """The model's outputs that are asked for, in that order; none where the finished results are."""
    if outputs == (RESULTS,):
        return ()
    unknown = [name for name in outputs if name not in heads]
    if unknown:
        raise RefusedError(
            Kind.INVALID, f"no output {', '.join(unknown)[:200]}: ask for {', '.join(heads)}, or for {RESULTS} alone"
        )
    return outputs or heads


def _stacked(answers: Sequence[Answered], head: str) -> npt.NDArray[Any]:
    """One output of all pictures, N first; without a copy where there is one."""
    values = [answer.outputs[head] for answer in answers if answer.outputs is not None]
    return values[0][np.newaxis] if len(values) == 1 else np.stack(values)


def _size(card: ModelCard) -> str:
    return f"{card.height}, {card.width}, 3"
