"""Writes MCAP files (mcap.dev/spec) whose messages are not serialized by ROS, and Foxglove's protocol buffers."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lz4.frame
import numpy as np
from backports import zstd
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_MAGIC = b"\x89MCAP0\r\n"
_BYTES, _MESSAGE, _STRING, _FIXED32 = 12, 11, 9, 7  # FieldDescriptorProto.Type
# As in github.com/foxglove/foxglove-sdk, schemas/proto/foxglove.
_FIELDS = {
    "foxglove.RawImage": (
        ("timestamp", 1, _MESSAGE),
        ("width", 2, _FIXED32),
        ("height", 3, _FIXED32),
        ("encoding", 4, _STRING),
        ("step", 5, _FIXED32),
        ("data", 6, _BYTES),
        ("frame_id", 7, _STRING),
    ),
    "foxglove.CompressedImage": (
        ("timestamp", 1, _MESSAGE),
        ("data", 2, _BYTES),
        ("format", 3, _STRING),
        ("frame_id", 4, _STRING),
    ),
    "foxglove.CompressedVideo": (
        ("timestamp", 1, _MESSAGE),
        ("frame_id", 2, _STRING),
        ("data", 3, _BYTES),
        ("format", 4, _STRING),
        ("message_id", 100, _STRING),
    ),
}


class Channel(NamedTuple):
    """A channel and its schema."""

    topic: str
    schema: str
    encoding: str = "protobuf"  # Of the messages.
    schema_encoding: str = "protobuf"


def camera_message(schema: str, stamp_ns: int, data: Any, **fields: Any) -> bytes:
    """Serializes a message of Foxglove by the protobuf library; `data` are bytes, or the pixels of a RawImage."""
    message = _class(schema)(frame_id="cam", **fields)
    message.timestamp.FromNanoseconds(stamp_ns)
    if isinstance(data, np.ndarray):
        message.height, message.width = data.shape[:2]
        message.step = data.strides[0]
        data = data.tobytes()
    message.data = data
    return bytes(message.SerializeToString())


def write_mcap(
    path: Path,
    channels: Sequence[Channel],
    messages: Sequence[tuple[int, bytes]],
    *,
    profile: str = "",
    compression: str | None = None,
    period_ns: int = 100_000_000,
    start_ns: int = 1_700_000_000_000_000_000,
    is_whole: bool = True,
) -> None:
    """Writes messages, each with the index of its channel.

    Args:
        compression: "", "lz4" or "zstd": in one chunk; None: without chunks.
        is_whole: Whether the file has its end.
    """
    records = b""
    for number, channel in enumerate(channels, start=1):
        records += _record(
            3,
            struct.pack("<H", number)
            + _text(channel.schema)
            + _text(channel.schema_encoding)
            + _text(_definition(channel)),
        )
        records += _record(
            4,
            struct.pack("<HH", number, number) + _text(channel.topic) + _text(channel.encoding) + struct.pack("<I", 0),
        )
    for index, (number, data) in enumerate(messages):
        time_ns = start_ns + index * period_ns
        records += _record(5, struct.pack("<HIQQ", number + 1, index, time_ns, time_ns) + data)
    if compression is not None:
        pack = {"": bytes, "lz4": lz4.frame.compress, "zstd": zstd.compress}[compression]
        packed = pack(records)
        times = struct.pack("<QQQI", start_ns, start_ns + len(messages) * period_ns, len(records), 0)
        records = _record(6, times + _text(compression) + struct.pack("<Q", len(packed)) + packed)
    end = _record(15, struct.pack("<I", 0)) + _record(2, struct.pack("<QQI", 0, 0, 0)) + _MAGIC
    path.write_bytes(_MAGIC + _record(1, _text(profile) + _text("test")) + records + (end if is_whole else b""))


def _definition(channel: Channel) -> bytes:
    if channel.schema_encoding != "protobuf" or channel.schema not in _FIELDS:
        return b"{}"
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(_file(channel.schema))
    return files.SerializeToString()


def _file(schema: str) -> descriptor_pb2.FileDescriptorProto:
    name = schema.rpartition(".")[2]
    file = descriptor_pb2.FileDescriptorProto(
        name=f"foxglove/{name}.proto",
        package="foxglove",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    message = file.message_type.add(name=name)
    for field, number, kind in _FIELDS[schema]:
        added = message.field.add(name=field, number=number, label=1)
        added.type = kind  # type: ignore[assignment]  # The stub wants the enumeration.
        if kind == _MESSAGE:
            added.type_name = ".google.protobuf.Timestamp"
    return file


def _class(schema: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    pool.Add(timestamp)
    pool.Add(_file(schema))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(schema))


def _record(op: int, content: bytes) -> bytes:
    return bytes([op]) + struct.pack("<Q", len(content)) + content


def _text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<I", len(data)) + data
