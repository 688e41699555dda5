"""What a node announces of itself: where it stands, and the cards of the models that a worker serves.

It comes seldom, and says much: its fields are read one by one.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import VERSION, Fields, MessageError
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import MAX_LABELS, Labels
from shared.messages.frame import MAX_SIDE
from shared.messages.model_card import ModelCard, Task, labels_of

MAX_AGE_MS = 1 << 53  # Of a node; nothing lives so long.
MAX_STATUS_BYTES = 1 << 20  # Dozens of models with hundreds of classes; a vehicle remembers as much of every worker.
_MAX_STATUS_BRANCHES = 1 << 14  # Lists and maps: a model of 1,000 classes takes 1,004 of them.
_MAX_MS = 86_400_000


class NodeState(StrEnum):
    """Where a node stands."""

    ONLINE = "online"
    STOPPING = "stopping"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node announces of itself, retained, and again on every reconnect."""

    state: NodeState
    session: str
    capacity: int = 0  # Frames a worker holds at a time before it answers `overloaded`.
    cards: tuple[ModelCard, ...] = ()
    age_ms: int = 0  # How long the process has been announcing: of two by one name the older one stays.
    rival: str | None = None  # Session of the process that this one last heard speak by its name.


def pack_status(status: NodeStatus) -> bytes:
    """The wire form of a node's status."""
    packed: bytes = msgpack.packb(
        {
            "v": VERSION,
            "state": status.state.value,
            "session": status.session,
            "capacity": status.capacity,
            "age_ms": status.age_ms,
            "rival": status.rival,
            "cards": [card_to_wire(card) for card in status.cards],
        }
    )
    return packed


def unpack_status(payload: Buffer) -> NodeStatus:
    """Read a node's status from the wire.

    Raises:
        MessageError: it is not a status of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    if len(payload) > MAX_STATUS_BYTES:
        raise MessageError(f"a status of {len(payload)} bytes is over the limit of {MAX_STATUS_BYTES}")
    fields = Fields.of_message(payload, most_branches=_MAX_STATUS_BRANCHES, most_items=MAX_LABELS)
    return NodeStatus(
        state=fields.choice("state", NodeState),
        session=fields.name("session"),
        capacity=fields.integer("capacity", 0, 1 << 20),
        cards=tuple(card_from_wire(Fields(card)) for card in fields.list("cards")),
        age_ms=fields.integer("age_ms", 0, MAX_AGE_MS) if fields.has("age_ms") else 0,
        rival=fields.name("rival") if fields.has("rival") else None,
    )


def card_to_wire(card: ModelCard) -> dict[str, Any]:
    """The wire form of a model card, a part of other messages."""
    return {
        "name": card.name,
        "version": card.version,
        "sha256": card.sha256,
        "task": card.task.value,
        "height": card.height,
        "width": card.width,
        "layout": card.layout.value,
        "resize": card.resize.value,
        "labels": card.labels.to_wire(),
        "trained": card.trained,
        "outputs": card.outputs,
        "engine": card.engine,
        "precision": card.precision,
        "cold_ms": card.cold_ms,
        "warm_ms": card.warm_ms,
    }


def card_from_wire(fields: Fields) -> ModelCard:
    """Read a model card.

    Raises:
        MessageError: a field is missing, of a wrong kind or out of bounds.
    """
    task = fields.choice("task", Task)
    try:
        # Raw tensors need no names of classes.
        labels = labels_of(task, Labels.from_wire(fields.get("labels"), least=0 if task is Task.TENSORS else 1))
    except SkylaneError as error:
        raise fields.wrong("labels", str(error)) from error
    return ModelCard(
        name=fields.name("name"),
        version=fields.text("version"),
        sha256=fields.text("sha256"),
        task=task,
        height=fields.integer("height", 1, MAX_SIDE),
        width=fields.integer("width", 1, MAX_SIDE),
        layout=fields.choice("layout", Layout),
        resize=fields.choice("resize", Resize),
        labels=labels,
        trained=fields.flag("trained"),
        outputs=fields.names("outputs") if fields.has("outputs") else (),
        engine=fields.text("engine") if fields.has("engine") else "",
        precision=fields.text("precision") if fields.has("precision") else "",
        cold_ms=fields.number("cold_ms", 0.0, _MAX_MS) if fields.has("cold_ms") else None,
        warm_ms=fields.number("warm_ms", 0.0, _MAX_MS) if fields.has("warm_ms") else None,
    )
