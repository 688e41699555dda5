"""The messages of the wire: MessagePack maps, version first, every field checked as it enters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import msgpack

from shared.errors import SkylaneError
from shared.frames import Layout
from shared.geometry import Geometry, GeometryError, Resize
from shared.labels import Labels
from shared.model_card import ModelCard
from shared.stages import Stamp
from shared.topics import FrameId, TopicNameError, checked

C = TypeVar("C", bound=StrEnum)

VERSION = 1
FRAME_CONTENT_TYPE = "application/vnd.skylane.frame+msgpack"
MASK_CONTENT_TYPE = "application/vnd.skylane.mask+msgpack"

MAX_MESSAGE_BYTES = 64 << 20
MAX_SIDE = 16384  # Pixels; no picture on the wire is wider or higher.
_MAX_ITEMS = 1024  # Entries of any list or map.
_MAX_TEXT = 4096
_MAX_NS = 1 << 62


class MessageError(SkylaneError):
    """A message that cannot be accepted. `frame_id` is set where it could still be read, so that it can be answered."""

    def __init__(self, message: str, frame_id: FrameId | None = None) -> None:
        self.frame_id = frame_id
        super().__init__(message)


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
    data: bytes | bytearray | memoryview
    attempt: int = 1
    budget_ms: int | None = None  # Time left when sent; None: no deadline.
    want: Want = field(default_factory=Want)
    stamps: tuple[Stamp, ...] = ()


@dataclass(frozen=True, slots=True)
class MaskMessage:
    """A worker's answer. `data` holds class ids of `shape` (H×W, uint8), packed losslessly by `codec`; empty unless answered."""

    id: FrameId
    attempt: int
    status: Status
    worker: str
    reason: str = ""
    model: str = ""
    model_version: str = ""
    model_sha256: str = ""
    task: str = "segmentation"
    geometry: Geometry | None = None
    shape: tuple[int, int] | None = None
    codec: str = "zstd"
    data: bytes | bytearray | memoryview = b""
    batch_size: int = 0
    stamps: tuple[Stamp, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node announces of itself, retained, and again on every reconnect."""

    state: NodeState
    session: str
    capacity: int = 0  # Frames a worker holds at a time before it answers `overloaded`.
    cards: tuple[ModelCard, ...] = ()


def pack_frame(message: FrameMessage) -> bytes:
    """The wire form of a frame."""
    return _pack(
        {
            "v": VERSION,
            "id": str(message.id),
            "attempt": message.attempt,
            "model": message.model,
            "frame_stamp_ns": message.frame_stamp_ns,
            "budget_ms": message.budget_ms,
            "layout": message.layout.value,
            "shape": message.shape,
            "dtype": message.layout.dtype.name,
            "codec": message.codec,
            "geometry": message.geometry.to_wire(),
            "want": {"mask_codec": message.want.mask_codec, "size": message.want.size},
            "stamps": _stamps_to_wire(message.stamps),
            "data": message.data,
        }
    )


def unpack_frame(payload: bytes) -> FrameMessage:
    """Read a frame from the wire.

    Raises:
        MessageError: it is not a frame message of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    fields = _Fields.of_message(payload)
    layout = fields.choice("layout", Layout)
    shape = fields.shape("shape", dimensions=(2, 3))
    if shape != layout.shape(shape[0], shape[1]):
        raise fields.wrong("shape", f"{list(shape)} does not fit layout {layout}")
    if fields.text("dtype") != layout.dtype.name:
        raise fields.wrong("dtype", f"layout {layout} holds {layout.dtype.name}")
    want = fields.map("want")
    size = want.get("size", "model")
    if size not in ("model", "frame"):
        raise fields.wrong("want", "size is 'model' or 'frame'")
    mask_codec = want.get("mask_codec", "zstd")
    if not isinstance(mask_codec, str):
        raise fields.wrong("want", "mask_codec is a text")
    return FrameMessage(
        id=fields.id,
        attempt=fields.integer("attempt", 1, 100),
        model=fields.name("model"),
        frame_stamp_ns=fields.integer("frame_stamp_ns", 0, _MAX_NS),
        budget_ms=fields.integer("budget_ms", 0, 86_400_000) if fields.has("budget_ms") else None,
        layout=layout,
        shape=shape,
        codec=fields.text("codec"),
        geometry=fields.geometry("geometry"),
        want=Want(mask_codec, size),
        stamps=fields.stamps("stamps"),
        data=fields.bytes("data"),
    )


def pack_mask(message: MaskMessage) -> bytes:
    """The wire form of an answer."""
    return _pack(
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
            "task": message.task,
            "geometry": message.geometry.to_wire() if message.geometry else None,
            "shape": message.shape,
            "codec": message.codec,
            "batch_size": message.batch_size,
            "stamps": _stamps_to_wire(message.stamps),
            "data": message.data,
        }
    )


def unpack_mask(payload: bytes) -> MaskMessage:
    """Read an answer from the wire.

    Raises:
        MessageError: it is not a mask message of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    fields = _Fields.of_message(payload)
    status = fields.choice("status", Status)
    shape = fields.shape("shape", dimensions=(2,)) if fields.has("shape") else None
    if status is Status.ANSWERED and shape is None:
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
        task=fields.text("task"),
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
            "cards": [_card_to_wire(card) for card in status.cards],
        }
    )


def unpack_status(payload: bytes) -> NodeStatus:
    """Read a node's status from the wire.

    Raises:
        MessageError: it is not a status of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    fields = _Fields.of_message(payload)
    return NodeStatus(
        state=fields.choice("state", NodeState),
        session=fields.name("session"),
        capacity=fields.integer("capacity", 0, 1 << 20),
        cards=tuple(_card_from_wire(_Fields(card)) for card in fields.list("cards")),
    )


def _card_to_wire(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "version": card.version,
        "sha256": card.sha256,
        "task": card.task,
        "height": card.height,
        "width": card.width,
        "layout": card.layout.value,
        "resize": card.resize.value,
        "labels": card.labels.to_wire(),
        "trained": card.trained,
    }


def _card_from_wire(fields: "_Fields") -> ModelCard:
    try:
        labels = Labels.from_wire(fields.get("labels"))
    except SkylaneError as error:
        raise fields.wrong("labels", str(error)) from error
    trained = fields.get("trained")
    if not isinstance(trained, bool):
        raise fields.wrong("trained", "it is true or false")
    return ModelCard(
        name=fields.name("name"),
        version=fields.text("version"),
        sha256=fields.text("sha256"),
        task=fields.text("task"),
        height=fields.integer("height", 1, MAX_SIDE),
        width=fields.integer("width", 1, MAX_SIDE),
        layout=fields.choice("layout", Layout),
        resize=fields.choice("resize", Resize),
        labels=labels,
        trained=trained,
    )


def _stamps_to_wire(stamps: tuple[Stamp, ...]) -> list[tuple[str, str, int]]:
    return [(stamp.stage, stamp.node, stamp.at_ns) for stamp in stamps]


def _pack(fields: Mapping[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


class _Fields:
    """A map from the wire, read field by field; each reader checks kind and bounds. Unknown keys are nobody's business."""

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise MessageError(f"a {type(fields).__name__} where a map belongs")
        self._fields = fields

    @classmethod
    def of_message(cls, payload: bytes) -> "_Fields":
        """Unpack a message and check its version."""
        if len(payload) > MAX_MESSAGE_BYTES:
            raise MessageError(f"a message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        try:
            fields = msgpack.unpackb(
                payload,
                max_array_len=_MAX_ITEMS,
                max_map_len=_MAX_ITEMS,
                max_str_len=_MAX_TEXT,
                max_bin_len=MAX_MESSAGE_BYTES,
                max_ext_len=0,
            )
        except (ValueError, msgpack.UnpackException) as error:
            raise MessageError(f"not a MessagePack map: {type(error).__name__} {error}"[:200]) from error
        message = cls(fields)
        if (version := message._fields.get("v")) != VERSION:
            raise message.wrong("v", f"version {str(version)[:20]} is not spoken here: speak {VERSION}")
        return message

    def wrong(self, key: str, what: str) -> MessageError:
        return MessageError(f"field {key!r}: {what}", _id_of(self._fields))

    def has(self, key: str) -> bool:
        return self._fields.get(key) is not None

    def get(self, key: str) -> Any:
        if key not in self._fields:
            raise self.wrong(key, "missing")
        return self._fields[key]

    @property
    def id(self) -> FrameId:
        try:
            return FrameId.parse(self.text("id"))
        except TopicNameError as error:
            raise MessageError(str(error)) from error

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, f"a text belongs here, not {type(value).__name__}")
        return value

    def name(self, key: str) -> str:
        try:
            return checked(key, self.text(key))
        except TopicNameError as error:
            raise self.wrong(key, str(error)) from error

    def choice(self, key: str, choices: type[C]) -> C:
        value = self.text(key)
        try:
            return choices(value)
        except ValueError as error:
            raise self.wrong(key, f"{value[:40]!r} is not one of {', '.join(choices)}") from error

    def integer(self, key: str, least: int, most: int) -> int:
        value = self.get(key)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most} belongs here, not {str(value)[:40]}")
        return value

    def bytes(self, key: str) -> bytes:
        value = self.get(key)
        if not isinstance(value, bytes):
            raise self.wrong(key, f"bytes belong here, not {type(value).__name__}")
        return value

    def list(self, key: str) -> list[Any]:
        value = self.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, f"a list belongs here, not {type(value).__name__}")
        return value

    def map(self, key: str) -> dict[Any, Any]:
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, f"a map belongs here, not {type(value).__name__}")
        return value

    def shape(self, key: str, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        value = self.list(key)
        if len(value) not in dimensions or not all(type(side) is int and 0 < side <= MAX_SIDE for side in value):
            raise self.wrong(key, f"{str(value)[:60]} is not a picture's shape with sides up to {MAX_SIDE}")
        return tuple(value)

    def geometry(self, key: str) -> Geometry:
        try:
            return Geometry.from_wire(self.get(key))
        except GeometryError as error:
            raise self.wrong(key, str(error)) from error

    def stamps(self, key: str) -> tuple[Stamp, ...]:
        stamps = []
        for item in self.list(key):
            if not isinstance(item, list) or [type(part) for part in item] != [str, str, int]:
                raise self.wrong(key, "a stamp is [stage, node, nanoseconds]")
            if not 0 <= item[2] <= _MAX_NS:
                raise self.wrong(key, f"{item[2]} ns is no time")
            stamps.append(Stamp(*item))
        return tuple(stamps)


def _id_of(fields: Mapping[Any, Any]) -> FrameId | None:
    """The frame's id, where a broken message still tells it."""
    try:
        return FrameId.parse(fields["id"])
    except (KeyError, TypeError, TopicNameError):
        return None
