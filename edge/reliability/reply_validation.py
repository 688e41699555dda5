"""An answer: what a worker's word tells of a frame, and what of it is believed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.messages.frame import ResultMessage, Status
from shared.stages import CLOUD_STAGES, Stage, Stamp, stage_times


class ReplyOrigin(NamedTuple):
    """Who answers: a worker, and what it runs. Workers of one group may be of different versions."""

    worker: str = ""
    model_version: str = ""
    engine: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker's word adds to a row; nothing where none came."""

    message: ResultMessage | None = None
    bytes_down: int = 0
    node: str = ""  # The process that received the frame, as its stamps tell: cloud/<worker>/<session>.
    cloud_times: Mapping[Stage, int] = field(default_factory=dict)
    answerer: ReplyOrigin = field(default_factory=ReplyOrigin)

    @classmethod
    def of(cls, message: ResultMessage, bytes_down: int, away_ns: int) -> "Answer":
        """What is believed of a message about a frame that was away for so long."""
        node = _node(message)
        by = ReplyOrigin(message.worker, message.model_version, message.engine, message.model_sha256)
        return cls(message, bytes_down, node, _cloud_times(message, node, away_ns), by)


def echoes(message: ResultMessage, stamps: tuple[Stamp, ...]) -> bool:
    """Whether an answer gives the stamps of that attempt back; the refusal of what could not be read may give none."""
    node = stamps[0].node
    ours = tuple(stamp for stamp in message.stamps if stamp.node == node)
    return ours == stamps or (not ours and message.status is not Status.ANSWERED)


def _node(message: ResultMessage) -> str:
    """The process of the answering worker that received the frame; empty where no stamp tells.

    A worker that gives another's name for its clock's would spoil what is known of the other's.
    """
    process = f"cloud/{message.worker}/"
    received: Iterable[str] = (stamp.node for stamp in message.stamps if stamp.stage == Stage.RECEIVED)
    return next((node for node in received if node.startswith(process)), "")


def _cloud_times(message: ResultMessage, node: str, away_ns: int) -> dict[Stage, int]:
    """The times of the node that received the frame, or none at all where they cannot be true.

    Times that run backwards, or last longer than the frame was away, would spoil the estimate of the clock as well.
    """
    if not node:
        return {}
    times = stage_times((stamp for stamp in message.stamps if stamp.node == node), CLOUD_STAGES)
    values = list(times.values())
    return times if values and values == sorted(values) and values[-1] - values[0] <= away_ns else {}
