"""A frame inside the worker, whatever door it came through."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cloud.engines.engine import Outputs
from shared import clock
from shared.messages import FrameMessage, MaskMessage
from shared.stages import Stage
from shared.topics import FrameId


@dataclass(slots=True)
class Request:
    """A frame on its way through the worker. One thread at a time holds it."""

    payload: bytes
    vehicle: str  # From the topic: the broker vouches for it.
    camera: str
    model: str
    answer: Callable[[MaskMessage], None]  # Through the door it came in by.
    times: dict[Stage, int]  # RECEIVED first.
    largest_answer: int  # Bytes of a mask that this door takes.
    correlation: FrameId | None = None  # Who to answer where the payload cannot be read.
    message: FrameMessage | None = None
    outputs: Outputs | None = None  # What the model gave for it, without the batch, once inferred.
    picture: Any = None  # H×W×3 uint8 in the model's colour order, once decoded.
    batch_size: int = field(default=0)

    @property
    def id(self) -> FrameId | None:
        """Whose frame it is; None while nothing that could be read tells it."""
        return self.message.id if self.message else self.correlation

    @property
    def is_expired(self) -> bool:
        """Whether its budget, counted from its receipt, is used up."""
        if self.message is None or self.message.budget_ms is None:
            return False
        return clock.now_ns() > self.times[Stage.RECEIVED] + self.message.budget_ms * 1_000_000

    def stamp(self, stage: Stage) -> None:
        """The frame leaves a stage now."""
        self.times[stage] = clock.now_ns()
