"""Validation of a worker's reply: which of its times and names the latency log may contain."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shared.messages.frame import ResultMessage, Status
from shared.stages import CLOUD_STAGES, Stage, Stamp, stage_times


class ReplyOrigin(NamedTuple):
    """The worker, model version and engine that produced a reply. Workers of one group may run different versions."""

    worker: str = ""
    model_version: str = ""
    engine: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ValidatedReply:
    """The validated contents of a reply; all fields are empty without a reply."""

    message: ResultMessage | None = None
    bytes_down: int = 0
    node: str = ""  # Process that received the frame: cloud/<worker>/<session>.
    cloud_times: Mapping[Stage, int] = field(default_factory=dict)
    origin: ReplyOrigin = field(default_factory=ReplyOrigin)

    @classmethod
    def of(cls, message: ResultMessage, bytes_down: int, round_trip_ns: int) -> "ValidatedReply":
        """Validates a message; times that do not fit into the round trip are left out."""
        node = _node(message)
        origin = ReplyOrigin(message.worker, message.model_version, message.engine, message.model_sha256)
        return cls(message, bytes_down, node, _cloud_times(message, node, round_trip_ns), origin)


def matches_attempt(message: ResultMessage, stamps: tuple[Stamp, ...]) -> bool:
    """Returns whether a reply belongs to the attempt, first or second, that was sent with `stamps`.

    A worker repeats the stamps of the message. The refusal of an unreadable message may lack them.
    """
    node = stamps[0].node
    ours = tuple(stamp for stamp in message.stamps if stamp.node == node)
    return ours == stamps or (not ours and message.status is not Status.ANSWERED)


def _node(message: ResultMessage) -> str:
    """Returns the process of the replying worker that received the frame; empty if no stamp names one.

    Processes of other workers do not count: their times would corrupt the clock offset of this one.
    """
    prefix = f"cloud/{message.worker}/"
    received: Iterable[str] = (stamp.node for stamp in message.stamps if stamp.stage == Stage.RECEIVED)
    return next((node for node in received if node.startswith(prefix)), "")


def _cloud_times(message: ResultMessage, node: str, round_trip_ns: int) -> dict[Stage, int]:
    """Returns the times of a node; empty if they are not in order or span more than the round trip."""
    if not node:
        return {}
    times = stage_times((stamp for stamp in message.stamps if stamp.node == node), CLOUD_STAGES)
    values = list(times.values())
    is_consistent = values and values == sorted(values) and values[-1] - values[0] <= round_trip_ns
    return times if is_consistent else {}
