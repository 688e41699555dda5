"""The retained status message of a vehicle or worker, with the cards of the models that a worker serves."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import VERSION, FieldReader, MessageError
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import MAX_LABELS, Labels
from shared.messages.frame import MAX_SIDE
from shared.messages.model_card import ModelCard, labels_of
from shared.tasks.task import TASKS, task_named

MAX_AGE_MS = 1 << 53
MAX_STATUS_BYTES = 1 << 20  # Enough for dozens of models with hundreds of classes; vehicles keep one per worker.
_MAX_STATUS_CONTAINERS = 1 << 14  # Lists and maps; a model with 1,000 classes takes 1,004 of them.
_MAX_MS = 86_400_000


class NodeState(StrEnum):
    """The life-cycle state of a node."""

    ONLINE = "online"
    STOPPING = "stopping"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of a node, published on start, on every change and on every reconnect."""

    state: NodeState
    session: str
    capacity: int = 0  # Frames a worker accepts at a time before it replies `overloaded`.
    cards: tuple[ModelCard, ...] = ()
    age_ms: int = 0  # Time since the process first announced itself; of two with the same name, the older one stays.
    rival: str | None = None  # Session of another process that uses the same name.


def pack_status(status: NodeStatus) -> bytes:
    """Encodes a status."""
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
    """Decodes a status.

    Raises:
        MessageError: The payload is not a status of this version, or a field is missing, of a wrong type or out of range.
    """
    if len(payload) > MAX_STATUS_BYTES:
        raise MessageError(f"a status of {len(payload)} bytes is over the limit of {MAX_STATUS_BYTES}")
    reader = FieldReader.unpack(payload, max_containers=_MAX_STATUS_CONTAINERS, max_items=MAX_LABELS)
    return NodeStatus(
        state=reader.choice("state", NodeState),
        session=reader.name("session"),
        capacity=reader.integer("capacity", 0, 1 << 20),
        cards=tuple(card_from_wire(FieldReader(card)) for card in reader.list("cards")),
        age_ms=reader.integer("age_ms", 0, MAX_AGE_MS) if reader.has("age_ms") else 0,
        rival=reader.name("rival") if reader.has("rival") else None,
    )


def card_to_wire(card: ModelCard) -> dict[str, Any]:
    """Converts a model card to a map, to embed it in a message. The keys are the names of its fields."""
    return {field.name: getattr(card, field.name) for field in fields(card)} | {"labels": card.labels.to_wire()}


def card_from_wire(reader: FieldReader) -> ModelCard:
    """Converts a map from a message to a model card.

    Raises:
        MessageError: A field is missing, of a wrong type or out of range.
    """
    task = reader.text("task")
    if task not in TASKS:
        raise reader.error("task", f"{task[:40]!r} is not one of {', '.join(TASKS)}")
    try:
        labels = labels_of(task, Labels.from_wire(reader.get("labels"), min_count=task_named(task).labels[0]))
    except SkylaneError as error:
        raise reader.error("labels", str(error)) from error
    return ModelCard(
        name=reader.name("name"),
        version=reader.text("version"),
        sha256=reader.text("sha256"),
        task=task,
        height=reader.integer("height", 1, MAX_SIDE),
        width=reader.integer("width", 1, MAX_SIDE),
        layout=reader.choice("layout", Layout),
        resize=reader.choice("resize", Resize),
        labels=labels,
        trained=reader.flag("trained"),
        outputs=reader.names("outputs") if reader.has("outputs") else (),
        engine=reader.text("engine") if reader.has("engine") else "",
        precision=reader.text("precision") if reader.has("precision") else "",
        cold_ms=reader.number("cold_ms", 0.0, _MAX_MS) if reader.has("cold_ms") else None,
        warm_ms=reader.number("warm_ms", 0.0, _MAX_MS) if reader.has("warm_ms") else None,
    )
