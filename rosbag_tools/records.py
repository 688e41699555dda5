"""Messages and damage of a bag's data file, and a reader of its records with bounds checks.

`rosbags` reads with the index at the end of a file. A recording that was killed has no index, and `rosbags` stops at
the first damaged chunk. The scans (`ros1_file`, `mcap_file`, `sqlite_file`) need only the records, know the position
of each message, and skip chunks that they cannot decompress.
"""

import struct
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import BinaryIO, NamedTuple, Self

from shared.errors import SkylaneError
from shared.imaging.frames import Layout, Pixels

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
SYNTHETIC = "synthetic_"  # Start of the frame_id in the messages of a synthetic drive.
FFMPEG_PACKET = "ffmpeg_image_transport_msgs/msg/FFMPEGPacket"
_RAW, _COMPRESSED, _VIDEO = "raw", "compressed", "video"
_KINDS = {  # Kinds of messages, by ROS type or protobuf schema.
    IMAGE: _RAW,
    COMPRESSED_IMAGE: _COMPRESSED,
    FFMPEG_PACKET: _VIDEO,
    **{
        f"{package}{name}": kind
        for package in ("foxglove_msgs/msg/", "foxglove.")
        for name, kind in (("RawImage", _RAW), ("CompressedImage", _COMPRESSED), ("CompressedVideo", _VIDEO))
    },
}


class Serialization(StrEnum):
    """Serialization of the messages in a bag."""

    ROS1 = "ros1"
    CDR = "cdr"
    PROTOBUF = "protobuf"
    OTHER = "other"  # Messages with another serialization are only counted.

    @property
    def is_ros(self) -> bool:
        """True for the serializations of ROS, in which bags are written."""
        return self in (Serialization.ROS1, Serialization.CDR)


@dataclass(frozen=True, slots=True)
class TopicChannel:
    """A topic and its type, as announced in a data file."""

    topic: str
    type: str  # The name in the file, with or without "/msg/".
    wire: Serialization
    definition: str = ""  # Empty if the file has no definition.
    is_idl: bool = False  # The definition is in OMG IDL instead of ROS's notation.
    is_latched: bool = False  # Late subscribers get the last message; only an index shows it.
    encoding: str = ""  # Name of the serialization in an MCAP file if it is not of ROS.

    @property
    def message_type(self) -> str:
        """The type with "/msg/", as in ROS 2; recorders may omit "/msg/"."""
        return _message_type(self.type)

    @property
    def has_images(self) -> bool:
        """True for raw and compressed images, and video."""
        return bool(_image_kind(self.type, self.wire))

    @property
    def has_raw_images(self) -> bool:
        """True for images that are not compressed."""
        return _image_kind(self.type, self.wire) == _RAW

    @property
    def has_compressed_images(self) -> bool:
        """True for compressed images, which may hold a video all the same."""
        return _image_kind(self.type, self.wire) == _COMPRESSED

    @property
    def has_video(self) -> bool:
        """True for video, whose messages can be decoded only one after the other."""
        return _image_kind(self.type, self.wire) == _VIDEO

    @property
    def fault(self) -> str:
        """The reason why the messages cannot be read; empty for a supported serialization."""
        return (
            "" if self.wire is not Serialization.OTHER else f"{self.encoding or 'unnamed'} messages are not supported"
        )


def _message_type(name: str) -> str:
    package, _, last = name.rpartition("/")
    return name if not package or package.endswith(("/msg", "/action")) else f"{package}/msg/{last}"


def _image_kind(name: str, wire: Serialization) -> str:
    is_read = wire.is_ros if "/" in name else wire is Serialization.PROTOBUF
    return _KINDS.get(_message_type(name), "") if is_read else ""


@dataclass(frozen=True, slots=True)
class Message:
    """A serialized message of a bag and its position."""

    channel: TopicChannel
    time_ns: int  # Recording time.
    data: bytes
    place: str = ""  # "byte 4117" of the file or "row 12" of the database; empty if read by the index.
    picture: tuple[Pixels, Layout] | None = None  # The decoded picture of a video message.
    loss: str = ""  # The reason why a video message has no picture.

    @property
    def is_video(self) -> bool:
        """True for a packet of a video; in compressed images only after `with_pictures`."""
        return self.channel.has_video or self.picture is not None or bool(self.loss)


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a data file that cannot be read, and its position."""

    place: str
    reason: str
    channel: TopicChannel | None = None  # The channel of the damaged message, if known.
    time_ns: int = 0  # Recording time of the damaged message, if known.


class Box(NamedTuple):
    """The visible extent of a vehicle, person or rider, in pixels from the upper left corner of the image."""

    name: str
    x: float
    y: float
    width: float
    height: float


class DamagedRecordError(SkylaneError):
    """A record does not fit its format."""


class Records:
    """Reads bytes of a file of known length, so that a false length is refused before memory is allocated."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size
        self.at = 0

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Creates a reader of the records inside one record."""
        return cls(BytesIO(data), len(data))

    @property
    def ended(self) -> bool:
        """True if all bytes were read."""
        return self.at >= self.size

    def take(self, count: int) -> bytes:
        """Reads the next `count` bytes.

        Raises:
            DamagedRecordError: fewer bytes are left.
        """
        left = self.size - self.at
        if count > left:
            raise DamagedRecordError(f"a record needs {count} bytes, but {left} are left")
        self.at += count
        return self._file.read(count)

    def skip(self, count: int) -> None:
        """Passes over the next `count` bytes.

        Raises:
            DamagedRecordError: fewer bytes are left.
        """
        if count > self.size - self.at:
            raise DamagedRecordError(f"a record needs {count} bytes, but {self.size - self.at} are left")
        self.at += count
        self._file.seek(self.at)

    def number(self, code: str) -> int:
        """Reads a little-endian number with the `struct` format `code`."""
        return unpack(code, self.take(struct.calcsize(code)))

    def sized(self, code: str) -> bytes:
        """Reads bytes that follow their length, which has the `struct` format `code`."""
        return self.take(self.number(code))

    def text(self) -> str:
        """Reads a string that follows its 32-bit length; invalid UTF-8 is replaced."""
        return self.sized("I").decode(errors="replace")


def unpack(code: str, data: bytes) -> int:
    """Decodes a little-endian number with the `struct` format `code`.

    Raises:
        DamagedRecordError: `data` has the wrong length.
    """
    try:
        return int(struct.unpack("<" + code, data)[0])
    except struct.error as error:
        raise DamagedRecordError(f"a number needs {struct.calcsize(code)} bytes, but has {len(data)}") from error
