"""Reads image messages from their serialized bytes without copying the pixels.

`rosbags` creates an object for every message and needs its definition. Reading the few fields here avoids the copy and
works for bags without definitions. ROS 1 packs fields without gaps and has a sequence number in its header. CDR
(OMG DDS-XTypes, version 1) aligns each number to its size, counts the final NUL of a string, and has its byte order
in the first four bytes.
"""

import struct
from dataclasses import dataclass
from enum import StrEnum

from shared.errors import SkylaneError

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
CDR_BIG_ENDIAN = b"\x00\x00"  # First bytes of a big-endian CDR message.

_MAX_STRING_BYTES = 1024  # Names of frames and encodings; a longer one is damage.
_CDR_LITTLE_ENDIAN = b"\x00\x01"
_HEADER_BYTES = 4  # Length of the CDR encapsulation header.


class Serialization(StrEnum):
    """Serialization of the messages in a bag."""

    ROS1 = "ros1"
    CDR = "cdr"


class MalformedMessageError(SkylaneError):
    """The bytes of a message do not fit its type."""


@dataclass(frozen=True, slots=True)
class ImageMessage:
    """A `sensor_msgs/Image`; `data` is a view of the message's bytes."""

    stamp_ns: int
    frame_id: str
    height: int
    width: int
    encoding: str
    is_bigendian: bool
    step: int  # Bytes per row, including padding.
    data: memoryview


@dataclass(frozen=True, slots=True)
class CompressedImageMessage:
    """A `sensor_msgs/CompressedImage`; `data` is a view of the message's bytes."""

    stamp_ns: int
    frame_id: str
    format: str
    data: memoryview


def read_image(raw: bytes | memoryview, wire: Serialization) -> ImageMessage:
    """Reads a `sensor_msgs/Image`.

    Raises:
        MalformedMessageError: the bytes end early, or contain an invalid length.
    """
    fields = _Fields(raw, wire)
    stamp_ns, frame_id = fields.header()
    height, width = fields.uint32(), fields.uint32()
    encoding = fields.string()
    is_bigendian = fields.uint8() != 0
    step = fields.uint32()
    return ImageMessage(stamp_ns, frame_id, height, width, encoding, is_bigendian, step, fields.bytes())


def read_compressed_image(raw: bytes | memoryview, wire: Serialization) -> CompressedImageMessage:
    """Reads a `sensor_msgs/CompressedImage`.

    Raises:
        MalformedMessageError: the bytes end early, or contain an invalid length.
    """
    fields = _Fields(raw, wire)
    stamp_ns, frame_id = fields.header()
    return CompressedImageMessage(stamp_ns, frame_id, fields.string(), fields.bytes())


def read_stamp(raw: bytes | memoryview, wire: Serialization) -> int:
    """Reads the stamp in ns of a message whose first field is a `std_msgs/Header`.

    Raises:
        MalformedMessageError: the bytes end early.
    """
    return _Fields(raw, wire).header()[0]


class _Fields:
    """Reads the fields of a message in order."""

    def __init__(self, raw: bytes | memoryview, wire: Serialization) -> None:
        self._raw = memoryview(raw)
        self._wire = wire
        self._order = "<"
        self._at = 0
        if wire is Serialization.CDR:
            kind = bytes(self._raw[:2])
            if kind not in (_CDR_LITTLE_ENDIAN, CDR_BIG_ENDIAN):
                raise MalformedMessageError(f"the message begins with {kind.hex() or 'nothing'}, not a CDR header")
            self._order = ">" if kind == CDR_BIG_ENDIAN else "<"
            self._at = _HEADER_BYTES

    def header(self) -> tuple[int, str]:
        """Reads a header: the stamp in ns and the name of the coordinate frame."""
        if self._wire is Serialization.ROS1:
            self.uint32()  # The sequence number, which ROS 2 does not have.
            seconds = self.uint32()
        else:
            seconds = self._number("i", 4)
        nanoseconds = self.uint32()
        return seconds * 1_000_000_000 + nanoseconds, self.string()

    def uint8(self) -> int:
        return self._number("B", 1)

    def uint32(self) -> int:
        return self._number("I", 4)

    def string(self) -> str:
        length = self.uint32()
        if length > _MAX_STRING_BYTES:
            raise MalformedMessageError(f"the message contains a name of {length} bytes: more than {_MAX_STRING_BYTES}")
        text = bytes(self._take(length))
        if self._wire is Serialization.CDR:
            text = text.removesuffix(b"\0")
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise MalformedMessageError(f"the message contains a name that is not UTF-8: {text[:40]!r}") from error

    def bytes(self) -> memoryview:
        return self._take(self.uint32())

    def _number(self, code: str, size: int) -> int:
        if self._wire is Serialization.CDR:
            self._at += -(self._at - _HEADER_BYTES) % size
        return int(struct.unpack(self._order + code, self._take(size))[0])

    def _take(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._raw):
            raise MalformedMessageError(
                f"the message ends at byte {len(self._raw)}, but one of its fields at byte {end}"
            )
        taken = self._raw[self._at : end]
        self._at = end
        return taken
