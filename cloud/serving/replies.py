"""Replies: every frame that came in is answered through the door it came by, and counted."""

from collections.abc import Mapping

import numpy as np

from cloud.engines.engine import Outputs
from cloud.frame_log import FrameLog
from cloud.serving.model_stats import Tally
from cloud.serving.request import Request
from cloud.serving.request_errors import RequestErrors
from shared import clock
from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.messages import results
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.model_card import ModelCard, Task
from shared.messages.results import Result
from shared.runtime.threads import Counts
from shared.stages import Stage, Stamp

# What makes an answer smaller, by task.
_SMALLER = {Task.SEGMENTATION: "another mask codec or size", Task.TENSORS: "fewer outputs or another codec"}


class ReplyTooLargeError(SkylaneError):
    """An answer that the broker would cut the connection for."""


class Replier:
    """Builds the answers of one worker."""

    def __init__(self, worker: str, node: str) -> None:
        self.tally = Tally()
        self.errors = RequestErrors()
        self.log = FrameLog()
        self._worker = worker
        self._node = node
        self._counts = Counts()

    @property
    def counts(self) -> Mapping[str, int]:
        """How many frames were answered how; `unreadable` ones could not be answered at all."""
        return self._counts.by_name()

    def result(self, request: Request, card: ModelCard, result: Result) -> None:
        """Answer with what the model said."""
        message = request.message
        assert message is not None
        data = results.encode(result, message.want.mask_codec)
        if len(data) > request.max_reply_bytes:
            raise ReplyTooLargeError(
                f"a {results.noun(card.task)} of {len(data)} bytes, more than the {request.max_reply_bytes} that the way "
                f"back takes: ask for {_SMALLER.get(card.task, 'another codec')}"
            )
        if request.batch_size > 1:
            data = bytes(data)  # A view would keep the whole batch for whoever takes its answer last.
        request.stamp(Stage.MASK_ENCODED)
        shape = (result.shape[0], result.shape[1]) if isinstance(result, np.ndarray) else None
        answered = self._answered(request, message, card, shape, data)
        request.answer(answered)
        self._count(request, answered)

    def heads(self, request: Request, card: ModelCard, outputs: Outputs) -> None:
        """Answer with the model's outputs as they are; the message tells all but them."""
        message, take = request.message, request.reply_with_outputs
        assert message is not None
        assert take is not None
        size = sum(values.nbytes for values in outputs.values())
        if size > request.max_reply_bytes:
            raise ReplyTooLargeError(
                f"outputs of {size} bytes, more than the {request.max_reply_bytes} that the way back takes: ask for fewer"
            )
        request.stamp(Stage.MASK_ENCODED)
        answered = self._answered(request, message, card, None, b"")
        take(answered, outputs)
        self._count(request, answered)

    def refuse(self, request: Request, status: Status, reason: str) -> None:
        """Answer without a mask; a frame that does not even tell whose it is can only be counted."""
        if request.id is None:
            self._counts.add("unreadable")
            self.log.unreadable(request, reason)
            return
        refused = ResultMessage(
            id=request.id,
            attempt=request.message.attempt if request.message else request.head.attempt,
            status=status,
            worker=self._worker,
            reason=reason[:500],
            model=request.model,
            geometry=request.message.geometry if request.message else None,
            batch_size=request.batch_size,
            stamps=self._stamped(request),
        )
        try:
            request.answer(refused)
        except Exception as error:  # noqa: BLE001  A refusal that cannot be sent has no other answer.
            self.errors.record("reply", error)
        self._count(request, refused)  # Now: who is pushed out is refused by another's call, which may take long.

    def fail(self, request: Request, stage: str, error: Exception) -> None:
        """Answers `failed` to a frame on which a stage raised an unexpected exception, which is recorded."""
        self.errors.record(stage, error)
        self.refuse(request, Status.FAILED, f"internal error in {stage} ({type(error).__name__}): see the worker's log")

    def _answered(
        self, request: Request, message: FrameMessage, card: ModelCard, shape: tuple[int, int] | None, data: Buffer
    ) -> ResultMessage:
        return ResultMessage(
            id=message.id,
            attempt=message.attempt,
            status=Status.ANSWERED,
            worker=self._worker,
            model=card.name,
            model_version=card.version,
            model_sha256=card.sha256,
            engine=f"{card.engine} {card.precision}",
            task=card.task,
            geometry=message.geometry,
            shape=shape,
            codec=message.want.mask_codec,
            data=data,
            batch_size=request.batch_size,
            stamps=self._stamped(request),
        )

    def _stamped(self, request: Request) -> tuple[Stamp, ...]:
        """The frame's own stamps, then this node's; REPLIED is the last act before packing."""
        request.times[Stage.REPLIED] = clock.now_ns()
        own = tuple(Stamp(stage, self._node, at_ns) for stage, at_ns in request.times.items())
        return (request.message.stamps if request.message else ()) + own

    def _count(self, request: Request, message: ResultMessage) -> None:
        self._counts.add(message.status.value)
        self.tally.add(request, message)
        self.log.replied(request, message)
