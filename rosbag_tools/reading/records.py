"""Messages and damage of a bag's data file, and a reader of its records with bounds checks.

`rosbags` reads with the index at the end of a file. A recording that was killed has no index, and `rosbags` stops at
the first damaged chunk. The scans (`ros1_file`, `mcap_file`, `sqlite_file`) need only the records, know the position
of each message, and skip chunks that they cannot decompress.
"""

import struct
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import BinaryIO, Self

from shared.errors import SkylaneError

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"


class Serialization(StrEnum):
    """Serialization of the messages in a bag."""

    ROS1 = "ros1"
    CDR = "cdr"


@dataclass(frozen=True, slots=True)
class TopicChannel:
    """A topic and its type, as announced in a data file."""

    topic: str
    type: str  # The name in the file, with or without "/msg/".
    wire: Serialization
    definition: str = ""  # Empty if the file has no definition.
    is_idl: bool = False  # The definition is in OMG IDL instead of ROS's notation.
    is_latched: bool = False  # Late subscribers get the last message; only an index shows it.

    @property
    def message_type(self) -> str:
        """The type with "/msg/", as in ROS 2; recorders of ROS 1 and ROS 2 may omit it."""
        package, _, name = self.type.rpartition("/")
        return self.type if not package or package.endswith(("/msg", "/action")) else f"{package}/msg/{name}"

    @property
    def has_images(self) -> bool:
        """True for raw and compressed images."""
        return self.message_type in (IMAGE, COMPRESSED_IMAGE)


@dataclass(frozen=True, slots=True)
class Message:
    """A serialized message of a bag and its position."""

    channel: TopicChannel
    time_ns: int  # Recording time.
    data: bytes
    place: str = ""  # "byte 4117" of the file or "row 12" of the database; empty if read by the index.


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a data file that cannot be read, and its position."""

    place: str
    reason: str
    channel: TopicChannel | None = None  # The channel of the damaged message, if known.
    time_ns: int = 0  # Recording time of the damaged message, if known.


class DamagedRecordError(SkylaneError):
    """A record does not fit its format."""


class Records:
    """Reads bytes of a file of known length, so that a false length is refused before memory is allocated."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size
        self.at = 0
        self.lost = False  # A length exceeded the file, so the start of the next record is unknown.

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
            self.lost = True
            raise DamagedRecordError(f"a record needs {count} bytes, but {left} are left")
        self.at += count
        return self._file.read(count)

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
