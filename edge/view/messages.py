"""What the vehicle node sends to the process of its view, over a pipe: MessagePack with its length before it."""

import struct
from typing import IO

import msgspec
import numpy as np

from edge.sinks.sink import FrameResult
from shared.imaging.geometry import Geometry
from shared.messages.model_card import ModelCard
from shared.task import task_named

MAX_ROWS = 64  # That wait; older ones are left out.
_CODEC = "raw"
_LENGTH = struct.Struct("<I")


class ViewSettings(msgspec.Struct, tag="settings"):
    """The first message: which viewer, and what it is to show."""

    viewer: str
    host: str
    card: ModelCard
    limit_bytes_per_s: float | None
    tls_cert: str | None = None
    tls_key: str | None = None


class ViewedFrame(msgspec.Struct, tag="frame"):
    """A frame with its result, or with the output of a presenter. Fields as in `FrameResult`."""

    time_ns: int  # When the vehicle had it.
    camera: str
    sequence: int
    frame_index: int
    stamp_ns: int
    source_ns: int
    image: memoryview  # RGB.
    height: int
    width: int
    result: memoryview  # As the task encodes it.
    shape: tuple[int, int] | None  # Of a mask.
    geometry: Geometry
    age_ns: int | None


class ViewedRow(msgspec.Struct, tag="row"):
    """A row of the latency log."""

    time_ns: int
    row: dict[str, str]


class ViewedCounts(msgspec.Struct, tag="counts"):
    """The totals of the run so far."""

    time_ns: int
    outcomes: dict[str, int]
    in_flight: int


ViewMessage = ViewedFrame | ViewedRow | ViewedCounts
_decoder = msgspec.msgpack.Decoder(ViewSettings | ViewMessage)
_encoder = msgspec.msgpack.Encoder()


def write_message(pipe: IO[bytes], message: ViewSettings | ViewMessage) -> None:
    """Writes a message; waits while the pipe is full.

    Raises:
        OSError: the other process has ended.
    """
    data = _encoder.encode(message)
    pipe.write(_LENGTH.pack(len(data)) + data)
    pipe.flush()


def read_message(pipe: IO[bytes]) -> ViewSettings | ViewMessage | None:
    """Waits for a message; returns None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    return _decoder.decode(data) if len(data) == length else None


def viewed_frame(frame: FrameResult, time_ns: int, card: ModelCard) -> ViewedFrame:
    """Returns the message of a frame that the vehicle has had since `time_ns`."""
    is_mask = isinstance(frame.result, np.ndarray)
    height, width = frame.image.shape[:2]
    return ViewedFrame(
        time_ns=time_ns,
        camera=frame.camera,
        sequence=frame.sequence,
        frame_index=frame.frame_index,
        stamp_ns=frame.stamp_ns,
        source_ns=frame.source_ns,
        image=np.ascontiguousarray(frame.image).data.cast("B"),
        height=height,
        width=width,
        result=memoryview(task_named(card.task).encode(frame.result, _CODEC)),
        shape=frame.result.shape if is_mask else None,
        geometry=frame.geometry,
        age_ns=frame.age_ns,
    )


def frame_result(message: ViewedFrame, card: ModelCard) -> FrameResult:
    """Returns the frame in a message."""
    return FrameResult(
        camera=message.camera,
        sequence=message.sequence,
        frame_index=message.frame_index,
        stamp_ns=message.stamp_ns,
        source_ns=message.source_ns,
        image=np.frombuffer(message.image, np.uint8).reshape(message.height, message.width, 3),
        result=task_named(card.task).decode(message.result, _CODEC, message.shape, message.geometry),
        geometry=message.geometry,
        age_ns=message.age_ns,
    )
