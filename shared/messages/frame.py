"""Frames and their answers on the wire: MessagePack maps, version first, every field checked as it enters."""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from shared.encoding.compression import Buffer
from shared.encoding.field_types import Name, Nanoseconds, Text
from shared.encoding.msgpack_reader import MAX_ITEMS, VERSION, MessageError
from shared.encoding.schema import Schema
from shared.imaging import geometry
from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry, GeometryError
from shared.imaging.labels import MAX_LABELS
from shared.messages.model_card import VERSION_NAME, Task
from shared.messages.topics import FrameId, TopicNameError
from shared.sanitize import printable
from shared.stages import Stamp

FRAME_CONTENT_TYPE = "application/vnd.skylane.frame+msgpack"
RESULT_CONTENT_TYPE = "application/vnd.skylane.mask+msgpack"
MAX_SIDE = 16384  # Pixels; no picture on the wire is wider or higher.
MAX_FRAME_STAMPS = 32  # Of a frame as it is sent; its answer gives them back, with the worker's own behind them, and
MAX_STAMPS = 64  # must find room beside the largest mask that the way back takes.
_MAX_ATTEMPTS, _MAX_BATCH, _MAX_MS = 100, 4096, 86_400_000

_Attempt = Annotated[int, Meta(ge=1, le=_MAX_ATTEMPTS)]
_Side = Annotated[int, Meta(ge=1, le=MAX_SIDE)]


class Status(StrEnum):
    """What a worker says became of a frame."""

    ANSWERED = "answered"
    EXPIRED = "expired"
    OVERLOADED = "overloaded"
    REJECTED = "rejected"
    FAILED = "failed"


class RequestOptions(Struct, frozen=True):
    """What the vehicle asks for beside the mask itself."""

    mask_codec: Text = "zstd"
    size: Literal["model", "frame"] = "model"  # The mask as the model made it, or laid back onto the original frame.
    top_k: Annotated[int, Meta(ge=1, le=MAX_LABELS)] | None = None  # Classes; None: as the model's manifest says.
    outputs: Annotated[tuple[Name, ...], Meta(max_length=MAX_ITEMS)] = ()  # Of a model of raw tensors; empty: all.


class FrameMessage(Struct, frozen=True):
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
    want: RequestOptions = RequestOptions()
    stamps: tuple[Stamp, ...] = ()


class ResultMessage(Struct, frozen=True):
    """A worker's answer. `data` holds the result of its task, as `shared.messages.results` packs it; empty unless answered.

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


class _FrameMap(Struct, kw_only=True):
    """A frame's message as it lies on the wire."""

    v: Literal[1]
    id: Text
    attempt: _Attempt
    model: Name
    version: (
        Annotated[str, Meta(pattern=rf"{VERSION_NAME}\Z", description="a version of 1 to 64 of A-Z a-z 0-9 _ - .")]
        | None
    ) = None
    frame_stamp_ns: Nanoseconds
    budget_ms: Annotated[int, Meta(ge=0, le=_MAX_MS)] | None = None
    layout: Layout
    shape: Annotated[tuple[_Side, ...], Meta(min_length=2, max_length=3, description="[height, width], colours or not")]
    dtype: Text
    codec: Text
    geometry: Geometry
    want: RequestOptions
    stamps: Annotated[tuple[Stamp, ...], Meta(max_length=MAX_FRAME_STAMPS)]
    data: memoryview


class _MaskMap(Struct, kw_only=True):
    """An answer's message as it lies on the wire."""

    v: Literal[1]
    id: Text
    attempt: _Attempt
    status: Status
    reason: Text
    worker: Name
    model: Text
    model_version: Text
    model_sha256: Text
    engine: Text | None = None
    task: Task
    geometry: Geometry | None = None
    shape: Annotated[tuple[_Side, _Side], Meta(description="[height, width]")] | None = None
    codec: Text
    batch_size: Annotated[int, Meta(ge=0, le=_MAX_BATCH)]
    stamps: Annotated[tuple[Stamp, ...], Meta(max_length=MAX_STAMPS)]
    data: memoryview


_FRAMES, _MASKS = Schema(_FrameMap), Schema(_MaskMap)


def pack_frame(message: FrameMessage) -> bytes:
    """The wire form of a frame."""
    return _FRAMES.write(
        _FrameMap(
            v=VERSION,
            id=str(message.id),
            attempt=message.attempt,
            model=message.model,
            version=message.version,
            frame_stamp_ns=message.frame_stamp_ns,
            budget_ms=message.budget_ms,
            layout=message.layout,
            shape=message.shape,
            dtype=message.layout.dtype_name,
            codec=message.codec,
            geometry=message.geometry,
            want=message.want,
            stamps=message.stamps,
            data=memoryview(message.data),
        )
    )


def unpack_frame(payload: Buffer) -> FrameMessage:
    """Read a frame from the wire; its data is a view.

    Raises:
        MessageError: it is not a frame message of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    came = _FRAMES.read(payload)
    frame_id, layout, shape = _id(came.id), came.layout, came.shape
    if shape != layout.shape(shape[0], shape[1]):
        raise _wrong("shape", f"{list(shape)} does not fit layout {layout}", frame_id)
    if came.dtype != layout.dtype_name:
        raise _wrong("dtype", f"layout {layout} holds {layout.dtype_name}", frame_id)
    _check_geometry(came.geometry, frame_id)
    return FrameMessage(
        id=frame_id,
        attempt=came.attempt,
        model=came.model,
        version=came.version,
        frame_stamp_ns=came.frame_stamp_ns,
        budget_ms=came.budget_ms,
        layout=layout,
        shape=shape,
        codec=printable(came.codec),
        geometry=came.geometry,
        want=came.want
        if came.want.mask_codec.isprintable()
        else replace(came.want, mask_codec=printable(came.want.mask_codec)),
        stamps=came.stamps,
        data=came.data,
    )


def pack_result(message: ResultMessage) -> bytes:
    """The wire form of an answer."""
    return _MASKS.write(
        _MaskMap(
            v=VERSION,
            id=str(message.id),
            attempt=message.attempt,
            status=message.status,
            reason=message.reason,
            worker=message.worker,
            model=message.model,
            model_version=message.model_version,
            model_sha256=message.model_sha256,
            engine=message.engine,
            task=message.task,
            geometry=message.geometry,
            shape=message.shape,
            codec=message.codec,
            batch_size=message.batch_size,
            stamps=message.stamps,
            data=memoryview(message.data),
        )
    )


def unpack_result(payload: Buffer) -> ResultMessage:
    """Read an answer from the wire; its data is a view.

    Raises:
        MessageError: it is not a mask message of this version, or a field is missing, of a wrong kind or out of bounds.
    """
    came = _MASKS.read(payload)
    frame_id = _id(came.id)
    if came.status is Status.ANSWERED and came.task is Task.SEGMENTATION and came.shape is None:
        raise _wrong("shape", "an answered frame has a mask", frame_id)
    if came.geometry is not None:
        _check_geometry(came.geometry, frame_id)
    return ResultMessage(
        id=frame_id,
        attempt=came.attempt,
        status=came.status,
        worker=came.worker,
        reason=printable(came.reason),
        model=printable(came.model),
        model_version=printable(came.model_version),
        model_sha256=printable(came.model_sha256),
        engine=printable(came.engine or ""),
        task=came.task,
        geometry=came.geometry,
        shape=came.shape,
        codec=printable(came.codec),
        batch_size=came.batch_size,
        stamps=came.stamps,
        data=came.data,
    )


def _id(text: str) -> FrameId:
    try:
        return FrameId.parse(text)
    except TopicNameError as error:
        raise MessageError(str(error)) from error


def _check_geometry(made: Geometry, frame_id: FrameId) -> None:
    try:
        geometry.check(made)
    except GeometryError as error:
        raise _wrong("geometry", str(error), frame_id) from error


def _wrong(key: str, what: str, frame_id: FrameId) -> MessageError:
    return MessageError(f"field {key!r}: {what}", frame_id)
