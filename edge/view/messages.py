"""What the vehicle node sends to the process of its view, over a pipe: MessagePack with its length before it."""

import struct
from typing import IO, TypeVar

import msgspec
import numpy as np

from edge.sinks.sink import FrameResult
from shared.imaging.geometry import Geometry
from shared.messages.model_card import ModelCard
from shared.task import task_named

_CODEC = "raw"
_LENGTH = struct.Struct("<I")

M = TypeVar("M", bound=msgspec.Struct)


class ViewSettings(msgspec.Struct):
    """The first message: which viewer, and what it is to show."""

    viewer: str
    host: str
    card: ModelCard
    bytes_per_s: float | None
    history_mb: int = 100  # What Rerun's server keeps for pages that are opened late.
    tls_cert: str | None = None
    tls_key: str | None = None


class ViewedFrame(msgspec.Struct):
    """A frame with its result, or with the output of a presenter. Fields as in `FrameResult`."""

    time_ns: int  # When the vehicle had it.
    camera: str
    sequence: int
    stamp_ns: int
    image: memoryview  # RGB.
    height: int
    width: int
    result: memoryview  # As the task encodes it.
    shape: tuple[int, int] | None  # Of a mask.
    geometry: Geometry
    age_ns: int | None

    @classmethod
    def of(cls, frame: FrameResult, time_ns: int, card: ModelCard) -> "ViewedFrame":
        """Returns the message of a frame that the vehicle has had since `time_ns`."""
        height, width = frame.image.shape[:2]
        return cls(
            time_ns,
            frame.camera,
            frame.sequence,
            frame.stamp_ns,
            np.ascontiguousarray(frame.image).data.cast("B"),
            height,
            width,
            memoryview(task_named(card.task).encode(frame.result, _CODEC)),
            frame.result.shape if isinstance(frame.result, np.ndarray) else None,
            frame.geometry,
            frame.age_ns,
        )

    def frame(self, card: ModelCard) -> FrameResult:
        """Returns the frame."""
        return FrameResult(
            camera=self.camera,
            sequence=self.sequence,
            frame_index=self.sequence,
            stamp_ns=self.stamp_ns,
            source_ns=self.time_ns,
            image=np.frombuffer(self.image, np.uint8).reshape(self.height, self.width, 3),
            result=task_named(card.task).decode(self.result, _CODEC, self.shape, self.geometry),
            geometry=self.geometry,
            age_ns=self.age_ns,
        )


class ViewUpdate(msgspec.Struct):
    """What is new since the last one."""

    time_ns: int
    frames: list[ViewedFrame]
    rows: list[dict[str, str]]  # Of the latency log.
    outcomes: dict[str, int]  # The totals of the run so far.
    in_flight: int


def write_message(pipe: IO[bytes], message: msgspec.Struct) -> None:
    """Writes a message; waits while the pipe is full.

    Raises:
        OSError: the other process has ended.
    """
    data = msgspec.msgpack.encode(message)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def read_message(pipe: IO[bytes], kind: type[M]) -> M | None:
    """Waits for a message; returns None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    return msgspec.msgpack.decode(data, type=kind) if len(data) == length else None
