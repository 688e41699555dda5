"""The messages of the wire: MessagePack maps, version first, every field checked as it enters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgpack

from shared import last_field
from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.fields import MAX_FRAME_STAMPS, MAX_NS, MAX_SIDE, VERSION, Fields, MessageError
from shared.frames import Layout
from shared.geometry import Geometry, Resize
from shared.labels import MAX_LABELS, Labels
from shared.model_card import ModelCard, Task, labels_of
from shared.stages import Stamp
from shared.topics import FrameId

FRAME_CONTENT_TYPE = "application/vnd.skylane.frame+msgpack"
MASK_CONTENT_TYPE = "application/vnd.skylane.mask+msgpack"
MAX_AGE_MS = 1 << 53  # Of a node; nothing lives so long.
MAX_STATUS_BYTES = 1 << 20  # Dozens of models with hundreds of classes; a vehicle remembers as much of every worker.
_MAX_STATUS_BRANCHES = 1 << 14  # Lists and maps: a model of 1,000 classes takes 1,004 of them.
_MAX_MS = 86_400_000.0


class Status(StrEnum):
    """What a worker says became of a frame."""

    ANSWERED = "answered"
    EXPIRED = "expired"
    OVERLOADED = "overloaded"
    REJECTED = "rejected"
    FAILED = "failed"


class NodeState(StrEnum):
    """Where a node stands."""

    ONLINE = "online"
    STOPPING = "stopping"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class Want:
    """What the vehicle asks for beside the mask itself."""

    mask_codec: str = "zstd"
    size: str = "model"  # "model": the mask as the model made it; "frame": laid back onto the original frame.
    top_k: int | None = None  # Classes of a classification; None: as the model's manifest says.
    outputs: tuple[str, ...] = ()  # Of a model of raw tensors; empty: all.


@dataclass(frozen=True, slots=True)
class FrameMessage:
    """A frame on its way to a worker. `data` holds pixels of `shape` in `layout`, packed by `codec`."""

    id: FrameId
    model: str
    layout: Layout
    shape: tuple[int, ...]  # H×W or H×W×3
    codec: str
    geometry: Geometry
    frame_stamp_ns: int
    data: Buffer
    attempt: int = 1
    version: str | None = None  # Of the model; None: the one that the worker takes for current.
    budget_ms: int | None = None  # Time left when sent; None: no deadline.
    want: Want = field(default_factory=Want)
    stamps: tuple[Stamp, ...] = ()


@dataclass(frozen=True, slots=True)
class MaskMessage:
    """A worker's answer. `data` holds the result of its task, as `shared.results` packs it; empty unless answered.

    `shape`: of a mask, H×W; None for other tasks.
    """

    id: FrameId
    attempt: int
    status: Status
    worker: str
    reason: str = ""
    model: str = ""
    model_version: str = ""
    model_sha256: str = ""
    engine: str = ""  # What ran the model, and in what numbers: "openvino bf16".
    task: Task = Task.SEGMENTATION
    geometry: Geometry | None = None
    shape: tuple[int, int] | None = None
    codec: str = "zstd"
    data: Buffer = b""
    batch_size: int = 0
    stamps: tuple[Stamp, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node announces of itself, retained, and again on every reconnect."""

    state: NodeState
    session: str
    capacity: int = 0  # Frames a worker holds at a time before it answers `overloaded`.
    cards: tuple[ModelCard, ...] = ()
    age_ms: int = 0  # How long the process has been announcing: of two by one name the older one stays.
    rival: str | None = None  # Session of the process that this one last heard speak by its name.


def pack_frame(message: FrameMessage) -> bytes:
    """The wire form of a frame."""
    return b"".join(frame_parts(message))


def frame_parts(message: FrameMessage) -> tuple[Buffer, ...]:
    """The wire form of a frame in parts to be joined, so that a large picture is copied once."""
    return _parts(
        {
            "v": VERSION,
            "id": str(message.id),
            "attempt": message.attempt,
            "model": message.model,
            "version": message.version,
            "frame_stamp_ns": message.frame_stamp_ns,
            "budget_ms": message.budget_ms,
            "layout": message.layout.value,
            "shape": message.shape,
            "dtype": message.layout.dtype_name,
            "codec": message.codec,
            "geometry": message.geometry.to_wire(),
            "want": {
                "mask_codec": message.want.mask_codec,
                "size": message.want.size,
                "top_k": message.want.top_k,
                "outputs": message.want.outputs,
            },
            "stamps": message.stamps,
            "data": message.data,
        }
    )


def unpack_frame(payload: Buffer) -> FrameMessage:
    """Read a frame from the wire.

    Raises:
        MessageError: it is not a frame message of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    fields = Fields.of_message_with_data(payload)
    layout = fields.choice("layout", Layout)
    shape = fields.shape("shape", dimensions=(2, 3))
    if shape != layout.shape(shape[0], shape[1]):
        raise fields.wrong("shape", f"{list(shape)} does not fit layout {layout}")
    if fields.text("dtype") != layout.dtype_name:
        raise fields.wrong("dtype", f"layout {layout} holds {layout.dtype_name}")
    return FrameMessage(
        id=fields.id,
        attempt=fields.integer("attempt", 1, 100),
        model=fields.name("model"),
        version=fields.version("version") if fields.has("version") else None,
        frame_stamp_ns=fields.integer("frame_stamp_ns", 0, MAX_NS),
        budget_ms=fields.integer("budget_ms", 0, 86_400_000) if fields.has("budget_ms") else None,
        layout=layout,
        shape=shape,
        codec=fields.text("codec"),
        geometry=fields.geometry("geometry"),
        want=_want(fields),
        stamps=fields.stamps("stamps", MAX_FRAME_STAMPS),
        data=fields.bytes("data"),
    )


def pack_mask(message: MaskMessage) -> bytes:
    """The wire form of an answer."""
    return b"".join(mask_parts(message))


def mask_parts(message: MaskMessage) -> tuple[Buffer, ...]:
    """The wire form of an answer in parts to be joined, so that a large mask is copied once."""
    return _parts(
        {
            "v": VERSION,
            "id": str(message.id),
            "attempt": message.attempt,
            "status": message.status.value,
            "reason": message.reason,
            "worker": message.worker,
            "model": message.model,
            "model_version": message.model_version,
            "model_sha256": message.model_sha256,
            "engine": message.engine,
            "task": message.task.value,
            "geometry": message.geometry.to_wire() if message.geometry else None,
            "shape": message.shape,
            "codec": message.codec,
            "batch_size": message.batch_size,
            "stamps": message.stamps,
            "data": message.data,
        }
    )


def unpack_mask(payload: Buffer) -> MaskMessage:
    """Read an answer from the wire.

    Raises:
        MessageError: it is not a mask message of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    fields = Fields.of_message_with_data(payload)
    status = fields.choice("status", Status)
    shape = fields.shape("shape", dimensions=(2,)) if fields.has("shape") else None
    task = fields.choice("task", Task)
    if status is Status.ANSWERED and task is Task.SEGMENTATION and shape is None:
        raise fields.wrong("shape", "an answered frame has a mask")
    return MaskMessage(
        id=fields.id,
        attempt=fields.integer("attempt", 1, 100),
        status=status,
        worker=fields.name("worker"),
        reason=fields.text("reason"),
        model=fields.text("model"),
        model_version=fields.text("model_version"),
        model_sha256=fields.text("model_sha256"),
        engine=fields.text("engine") if fields.has("engine") else "",
        task=task,
        geometry=fields.geometry("geometry") if fields.has("geometry") else None,
        shape=(shape[0], shape[1]) if shape else None,
        codec=fields.text("codec"),
        batch_size=fields.integer("batch_size", 0, 4096),
        stamps=fields.stamps("stamps"),
        data=fields.bytes("data"),
    )


def pack_status(status: NodeStatus) -> bytes:
    """The wire form of a node's status."""
    return _pack(
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


def unpack_status(payload: bytes) -> NodeStatus:
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


def _want(fields: Fields) -> Want:
    want = Fields(fields.map("want"))
    size = want.text("size") if want.has("size") else "model"
    if size not in ("model", "frame"):
        raise fields.wrong("want", "size is 'model' or 'frame'")
    try:
        return Want(
            mask_codec=want.text("mask_codec") if want.has("mask_codec") else "zstd",
            size=size,
            top_k=want.integer("top_k", 1, MAX_LABELS) if want.has("top_k") else None,
            outputs=want.names("outputs") if want.has("outputs") else (),
        )
    except MessageError as error:
        raise fields.wrong("want", str(error)) from error


def _parts(fields: dict[str, Any]) -> tuple[Buffer, ...]:
    """A map whose last field is `data`."""
    data = fields[last_field.KEY]
    if not last_field.is_large(data):
        return (_pack(fields),)
    return last_field.parts(_pack({**fields, last_field.KEY: b""}), data)


def _pack(fields: Mapping[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed
