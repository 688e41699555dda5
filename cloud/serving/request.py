"""A frame inside the worker, whatever door it came through."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cloud.engines.engine import Outputs
from shared import clock
from shared.encoding.compression import Buffer
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.frame_header import EMPTY_HEADER, FrameHeader
from shared.messages.topics import FrameId
from shared.stages import Stage


class Refusal(NamedTuple):
    """Why a frame is not worked on."""

    status: Status
    reason: str


CLIENT_GONE = Refusal(Status.EXPIRED, "nobody waits for it any more")


@dataclass(slots=True, eq=False)
class Request:
    """A frame on its way through the worker. One thread at a time holds it."""

    payload: Buffer  # Its message as it came; of a frame whose message is known already, its picture.
    vehicle: str  # From the topic: the broker vouches for it; at another door, whoever proved to be it.
    camera: str
    model: str
    answer: Callable[[ResultMessage], None]  # Through the door it came in by.
    times: dict[Stage, int]  # RECEIVED first.
    max_reply_bytes: int  # Bytes of a mask that this door takes.
    correlation: FrameId | None = None  # Who to answer where the payload cannot be read.
    head: FrameHeader = EMPTY_HEADER  # What admission must know before the payload is read.
    message: FrameMessage | None = None
    outputs: Outputs | None = None  # What the model gave for it, without the batch, once inferred.
    picture: Any = None  # H×W×3 uint8 in the model's colour order, once decoded.
    batch_size: int = 0
    reply_with_outputs: Callable[[ResultMessage, Outputs], None] | None = (
        None  # Wants the model's outputs as they are, unpacked.
    )
    is_wanted: Callable[[], bool] = lambda: True  # Whether someone still waits for the answer.

    @property
    def id(self) -> FrameId | None:
        """Whose frame it is; None while nothing that could be read tells it."""
        return self.message.id if self.message else self.correlation

    @property
    def ends_ns(self) -> int | None:
        """When its budget, counted from its receipt, is used up; None where it has none."""
        budget_ms = self.message.budget_ms if self.message else self.head.budget_ms
        return None if budget_ms is None else self.times[Stage.RECEIVED] + budget_ms * 1_000_000

    @property
    def is_expired(self) -> bool:
        """Whether its budget is used up."""
        return not self.can_finish_in(lambda: 0)

    def can_finish_in(self, takes_ns: Callable[[], int]) -> bool:
        """Whether what takes so long from now ends within its budget; without one nobody is asked how long."""
        ends_ns = self.ends_ns
        return ends_ns is None or clock.now_ns() + takes_ns() <= ends_ns

    def stamp(self, stage: Stage) -> None:
        """The frame leaves a stage now."""
        self.times[stage] = clock.now_ns()
