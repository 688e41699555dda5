"""Reads the image and video messages of Foxglove that are serialized as protocol buffers.

Their field numbers are in github.com/foxglove/foxglove-sdk, schemas/proto/foxglove, and never change.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.messages.protobuf_fields import ProtobufError, check_count, fields

_Schema = dict[int, tuple[str, type]]  # Field number → name, and the type of its value.
_BYTES: type = memoryview
_NUMBER: type = int
_TIMESTAMP: _Schema = {1: ("seconds", _NUMBER), 2: ("nanos", _NUMBER)}
_HEAD: _Schema = {1: ("timestamp", _BYTES)}
_SCHEMAS: dict[str, _Schema] = {
    "foxglove.RawImage": {
        2: ("width", _NUMBER),
        3: ("height", _NUMBER),
        4: ("encoding", _BYTES),
        5: ("step", _NUMBER),
        6: ("data", _BYTES),
    },
    "foxglove.CompressedImage": {2: ("data", _BYTES), 3: ("format", _BYTES)},
    "foxglove.CompressedVideo": {3: ("data", _BYTES), 4: ("format", _BYTES)},
}
_LATEST_S = 1 << 33  # The year 2242; a negative number is a larger one here.
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CameraMessage:
    """The fields of an image or video message; fields that its type does not have are 0 or empty."""

    data: npt.NDArray[np.uint8]
    format: str = ""
    encoding: str = ""
    width: int = 0
    height: int = 0
    step: int = 0
    is_bigendian: int = 0
    pts: int | None = None  # Time of presentation of a video packet, in an unknown unit.


def read_protobuf(schema: str, data: bytes) -> CameraMessage:
    """Reads an image or video message; of a message with another schema, only the structure is checked.

    Raises:
        ProtobufError: the data is not such a message.
    """
    values: dict[str, Any] = _read(data, _SCHEMAS.get(schema, {}))
    values |= {name: _text(values[name]) for name in ("format", "encoding") if name in values}
    return CameraMessage(**values | {"data": np.frombuffer(values.get("data", b""), np.uint8)})


def read_protobuf_stamp(data: bytes) -> int:
    """Reads the timestamp of an image or video message in ns.

    Raises:
        ProtobufError: the data is not such a message, or the timestamp is invalid.
    """
    found = _read(_read(data, _HEAD).get("timestamp", b""), _TIMESTAMP)
    seconds, nanos = found.get("seconds", 0), found.get("nanos", 0)
    if seconds > _LATEST_S or nanos >= _NS_PER_S:
        raise ProtobufError(f"its timestamp is {seconds} s and {nanos} ns")
    return int(seconds * _NS_PER_S + nanos)


def _read(data: Any, schema: _Schema) -> dict[str, Any]:
    """Returns the values of the known fields; the last one counts, and missing ones have their default."""
    found = {}
    for count, (number, value) in enumerate(fields(memoryview(data)), start=1):
        check_count(count)
        if number not in schema:
            continue
        name, kind = schema[number]
        if not isinstance(value, kind):
            raise ProtobufError(f"its field {name} has the wrong type")
        found[name] = value
    return found


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")
