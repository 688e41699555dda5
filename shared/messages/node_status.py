"""The retained status message of a vehicle or worker, with the cards of the models that a worker serves."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from shared.compression import Buffer
from shared.imaging.labels import MAX_LABELS
from shared.messages.model_card import ModelCard, check_card
from shared.messages.msgpack_reader import Name, Schema

MAX_AGE_MS = 1 << 53
MAX_STATUS_BYTES = 1 << 20  # Enough for dozens of models with hundreds of classes; vehicles keep one per worker.
_MAX_CONTAINERS = 1 << 14  # Lists and maps; a model with 1,000 classes takes 1,004 of them.


class NodeState(StrEnum):
    """The life-cycle state of a node."""

    ONLINE = "online"
    STOPPING = "stopping"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node, published on start, on every change and on every reconnect."""

    state: NodeState
    session: Name
    # Frames a worker accepts at a time before it replies `overloaded`.
    capacity: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    cards: Annotated[tuple[ModelCard, ...], Meta(max_length=MAX_LABELS)] = ()
    # Time since the process first announced itself; of two with the same name, the older one stays.
    age_ms: Annotated[int, Meta(ge=0, le=MAX_AGE_MS)] = 0
    # Session of the other process last heard of under this name; it proves that its status arrived.
    rival: Name | None = None


_STATUSES = Schema(
    NodeStatus,
    optional=("age_ms", "rival"),
    noun="a status",
    max_bytes=MAX_STATUS_BYTES,
    max_containers=_MAX_CONTAINERS,
    max_items=MAX_LABELS,
)
pack_status = _STATUSES.write


def unpack_status(payload: Buffer) -> NodeStatus:
    """Decodes a status; raises a MessageError if it or one of its cards is invalid."""
    status = _STATUSES.read(payload)
    for card in status.cards:
        check_card(card)
    return status
