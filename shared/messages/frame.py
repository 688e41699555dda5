"""The messages for a frame and its result: MessagePack maps, fully validated when they are decoded.

`peek` reads the fields that a queue needs from the first bytes, without decoding the image.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgpack
from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from shared.clock import Deadline
from shared.compression import Buffer
from shared.imaging import geometry
from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry, GeometryError
from shared.imaging.labels import MAX_LABELS
from shared.messages.load import WorkerLoad
from shared.messages.msgpack_reader import (
    MAX_ITEMS,
    MAX_MS,
    MAX_NS,
    MessageError,
    Name,
    Nanoseconds,
    Schema,
    Side,
    Text,
    Version,
    brief,
)
from shared.messages.topics import FrameId, TopicNameError
from shared.stages import Stage, Stamp
from shared.task import DEFAULT_TASK, TASKS, task_named

FRAME_CONTENT_TYPE = "application/vnd.skylane.frame+msgpack"
RESULT_CONTENT_TYPE = "application/vnd.skylane.mask+msgpack"
MAX_FRAME_STAMPS = 32  # Stamps of a frame message.
MAX_STAMPS = 64  # Stamps of a result message: those of the frame, then the worker's.
_MAX_ATTEMPTS, _MAX_BATCH = 100, 4096

_Attempt = Annotated[int, Meta(ge=1, le=_MAX_ATTEMPTS)]
_Shape = Annotated[
    tuple[Side, ...], Meta(min_length=2, max_length=3, description="[height, width] or [height, width, 3]")
]


class Status(StrEnum):
    """The outcome of a frame, reported by the worker."""

    ANSWERED = "answered"
    EXPIRED = "expired"
    OVERLOADED = "overloaded"
    REJECTED = "rejected"
    FAILED = "failed"


class RequestOptions(Struct, frozen=True):
    """Options for the result of a frame."""

    mask_codec: Text = "zstd"
    size: Literal["model", "frame"] = "model"  # Size of a mask: as computed by the model, or scaled to the frame.
    top_k: Annotated[int, Meta(ge=1, le=MAX_LABELS)] | None = None  # Number of classes; None: the model's default.
    outputs: Annotated[tuple[Name, ...], Meta(max_length=MAX_ITEMS)] = ()  # Names of raw tensors; empty: all.


class FrameMessage(Struct, frozen=True):
    """A frame sent to a worker. `data` holds pixels of `shape` and `layout`, encoded by `codec`."""

    id: FrameId
    model: str
    layout: Layout
    shape: tuple[int, ...]  # H×W or H×W×3
    codec: str
    geometry: Geometry
    stamp_ns: int
    data: Buffer
    attempt: int = 1
    version: str | None = None  # Model version; None means the current one.
    deadline: Deadline = Deadline.NEVER
    options: RequestOptions = RequestOptions()
    stamps: tuple[Stamp, ...] = ()


class ResultMessage(Struct, frozen=True):
    """A worker's reply to a frame. `data` holds the result (see `shared.messages.results`); empty unless ANSWERED."""

    id: FrameId
    attempt: int
    status: Status
    worker: str
    reason: str = ""
    model: str = ""
    model_version: str = ""
    model_sha256: str = ""
    engine: str = ""  # Engine and precision, such as "openvino bf16".
    task: str = DEFAULT_TASK
    geometry: Geometry | None = None
    shape: tuple[int, int] | None = None  # H×W of a mask; None for other tasks.
    codec: str = "zstd"
    data: Buffer = b""
    batch_size: int = 0
    load: WorkerLoad | None = None  # Load of the requested model when the reply was sent; None from older workers.
    stamps: tuple[Stamp, ...] = ()


class _FrameMap(Struct, kw_only=True):
    """The encoded fields of a `FrameMessage`."""

    id: Text
    attempt: _Attempt
    model: Name
    version: Version | None = None
    stamp_ns: Nanoseconds = field(name="frame_stamp_ns")
    budget_ms: Annotated[int, Meta(ge=0, le=MAX_MS)] | None = None
    layout: Layout
    shape: _Shape
    dtype: Text
    codec: Text
    geometry: Geometry
    want: RequestOptions
    stamps: Annotated[tuple[Stamp, ...], Meta(max_length=MAX_FRAME_STAMPS)]
    data: memoryview


class _ResultMap(Struct, kw_only=True):
    """The encoded fields of a `ResultMessage`."""

    id: Text
    attempt: _Attempt
    status: Status
    reason: Text
    worker: Name
    model: Text
    model_version: Text
    model_sha256: Text
    engine: Text | None = None
    task: Text
    geometry: Geometry | None = None
    shape: Annotated[tuple[Side, Side], Meta(description="[height, width]")] | None = None
    codec: Text
    batch_size: Annotated[int, Meta(ge=0, le=_MAX_BATCH)]
    load: WorkerLoad | None = None
    stamps: Annotated[tuple[Stamp, ...], Meta(max_length=MAX_STAMPS)]
    data: memoryview


_FRAMES = Schema(_FrameMap, optional=("version", "budget_ms"))
_RESULTS = Schema(_ResultMap, optional=("engine", "geometry", "shape", "load"))


def pack_frame(message: FrameMessage, now_ns: int | None = None) -> bytes:
    """Encodes a frame message; the field `budget_ms` is the time from `now_ns`, by default now, until the deadline."""
    fields = asdict(message)
    deadline, options = fields.pop("deadline"), fields.pop("options")
    fields |= {"id": str(message.id), "dtype": message.layout.dtype_name, "data": memoryview(message.data)}
    return _FRAMES.write(_FrameMap(budget_ms=deadline.remaining_ms(now_ns), want=options, **fields))


def unpack_frame(payload: Buffer, received_ns: int | None = None) -> FrameMessage:
    """Decodes a frame message; its data is a view of the payload. The deadline counts from `received_ns`, by default now.

    Raises:
        MessageError: The payload is not a frame message of this version, or a field is missing, of a wrong type or out
            of range.
    """
    fields = _FRAMES.read(payload)
    frame_id, layout, shape = _parse_id(fields.id), fields.layout, fields.shape
    if shape != layout.shape(shape[0], shape[1]):
        raise _field_error("shape", f"{list(shape)} does not fit layout {layout}", frame_id)
    if fields.dtype != layout.dtype_name:
        raise _field_error("dtype", f"layout {layout} has {layout.dtype_name}", frame_id)
    _check_geometry(fields.geometry, frame_id)
    read = asdict(fields)
    del read["dtype"]
    options, deadline = read.pop("want"), Deadline.after_ms(read.pop("budget_ms"), received_ns)
    return FrameMessage(**read | {"id": frame_id, "options": options, "deadline": deadline})


def pack_result(message: ResultMessage) -> bytes:
    """Encodes a result message."""
    return _RESULTS.write(_ResultMap(**asdict(message) | {"id": str(message.id), "data": memoryview(message.data)}))


def unpack_result(payload: Buffer) -> ResultMessage:
    """Decodes a result message; its data is a view of the payload.

    Raises:
        MessageError: The payload is not a result message of this version, or a field is missing, of a wrong type or out
            of range.
    """
    fields = _RESULTS.read(payload)
    frame_id = _parse_id(fields.id)
    if fields.task not in TASKS:
        raise _field_error("task", f"expected one of {', '.join(TASKS)}, not {brief(fields.task)}", frame_id)
    if fields.status is Status.ANSWERED and fields.shape is None and task_named(fields.task).has_shape:
        raise _field_error("shape", "missing, although the frame was answered with a mask", frame_id)
    if fields.geometry is not None:
        _check_geometry(fields.geometry, frame_id)
    return ResultMessage(**asdict(fields) | {"id": frame_id, "engine": fields.engine or ""})


def _parse_id(text: str) -> FrameId:
    try:
        return FrameId.parse(text)
    except TopicNameError as error:
        raise MessageError(str(error)) from error


def _check_geometry(value: Geometry, frame_id: FrameId) -> None:
    try:
        geometry.check(value)
    except GeometryError as error:
        raise _field_error("geometry", str(error), frame_id) from error


def _field_error(key: str, problem: str, frame_id: FrameId) -> MessageError:
    return MessageError(f"field {key!r}: {problem}", frame_id)


_HEADER_BYTES = 4096  # All fields before the image take about 1 kB.
_MAX_TEXT = 512
_MAX_KEYS = 32


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Selected fields of a frame message. Missing or invalid ones have their defaults; the whole message is validated later."""

    due_ns: int | None = None  # Vehicle clock: comparable only between frames of the same vehicle.
    deadline: Deadline = Deadline.NEVER
    version: str | None = None
    attempt: int = 1


EMPTY_HEADER = FrameHeader()


def peek(payload: Buffer, received_ns: int | None = None) -> FrameHeader:
    """Reads the header of a frame message, up to `data`. Takes microseconds, never fails and copies what it keeps.

    The deadline counts from `received_ns`, by default now.
    """
    fields: dict[str, Any] = {}
    unpacker = msgpack.Unpacker(
        max_buffer_size=_HEADER_BYTES,
        max_str_len=_MAX_TEXT,
        max_bin_len=_MAX_TEXT,
        max_array_len=MAX_ITEMS,
        max_map_len=MAX_ITEMS,
        max_ext_len=0,
    )
    unpacker.feed(memoryview(payload)[:_HEADER_BYTES])
    try:
        for _ in range(min(unpacker.read_map_header(), _MAX_KEYS)):
            key = unpacker.unpack()
            if key == "data":
                break
            value = unpacker.unpack()
            if isinstance(key, str):  # Other types may not be hashable, or nested too deeply to be hashed.
                fields[key] = value
    except (ValueError, msgpack.UnpackException):
        pass  # The fields read so far are kept.
    version = fields.get("version")
    return FrameHeader(
        due_ns=_due_ns(fields.get("stamps")),
        deadline=Deadline.after_ms(_integer(fields.get("budget_ms"), MAX_MS), received_ns),
        version=version if isinstance(version, str) else None,
        attempt=_integer(fields.get("attempt"), 100) or 1,
    )


def _due_ns(stamps: object) -> int | None:
    for stamp in stamps if isinstance(stamps, list) else ():
        match stamp:
            case [Stage.DUE.value, str(), int(at_ns)]:
                return _integer(at_ns, MAX_NS)
    return None


def _integer(value: object, maximum: int) -> int | None:
    return value if type(value) is int and 0 <= value <= maximum else None
