"""What a front-to-back scan of a bag's data file yields, and the careful taking of records that it is made of.

`rosbags` reads by the index at a file's end. A recording that was killed has none, and one damaged chunk ends its
reading. The scans (`ros1_file`, `mcap_file`, `sqlite_file`) need nothing but the records themselves, know where each
message lies, and step over what they cannot unfold.
"""

import struct
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO, Self

from rosbag_tools.messages.images import COMPRESSED_IMAGE, IMAGE, Wire
from shared.errors import SkylaneError


@dataclass(frozen=True, slots=True)
class Channel:
    """A topic of one type, as a data file announces it."""

    topic: str
    type: str  # As the file spells it, with or without "/msg/".
    wire: Wire
    definition: str = ""  # Empty where the file holds none.
    is_idl: bool = False  # Whether the definition is in OMG IDL rather than in ROS's own notation.
    is_latched: bool = False  # Whether its last message is kept for who comes late; known from an index only.

    @property
    def message_type(self) -> str:
        """The type with "/msg/", as ROS 2 spells it: recorders of both generations leave it out."""
        package, _, name = self.type.rpartition("/")
        return self.type if not package or package.endswith(("/msg", "/action")) else f"{package}/msg/{name}"

    @property
    def has_images(self) -> bool:
        """Whether its messages are pictures, compressed or not."""
        return self.message_type in (IMAGE, COMPRESSED_IMAGE)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a bag, as bytes, and where it lies."""

    channel: Channel
    time_ns: int  # When it was recorded.
    data: bytes
    place: str = ""  # "byte 4117" of the file, or "row 12" of the database; empty where the index was followed.


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a data file that cannot be read, and where."""

    place: str
    reason: str
    channel: Channel | None = None  # Whose message it is, where that is known.
    time_ns: int = 0  # The same.


class DamagedRecordError(SkylaneError):
    """A record is not what its format says."""


class Records:
    """Takes bytes off a file whose length is known, so that a false length is refused before memory is taken."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size
        self.at = 0
        self.lost = False  # A length ran past the end: where the next record begins is no longer known.

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The records within one record."""
        return cls(BytesIO(data), len(data))

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self.at >= self.size

    def take(self, count: int) -> bytes:
        """The next `count` bytes.

        Raises:
            DamagedRecordError: fewer are left.
        """
        left = self.size - self.at
        if count > left:
            self.lost = True
            raise DamagedRecordError(f"a record needs {count} bytes where {left} are left")
        self.at += count
        return self._file.read(count)

    def number(self, code: str) -> int:
        """The next little-endian number of the type that `struct` calls `code`."""
        return unpack(code, self.take(struct.calcsize(code)))

    def sized(self, code: str) -> bytes:
        """The bytes that follow their own length, which is of `struct`'s type `code`."""
        return self.take(self.number(code))

    def text(self) -> str:
        """A string that follows its own length of 32 bits; what is not UTF-8 is replaced."""
        return self.sized("I").decode(errors="replace")


def unpack(code: str, data: bytes) -> int:
    """A little-endian number of the type that `struct` calls `code`.

    Raises:
        DamagedRecordError: `data` is not as long as it.
    """
    try:
        return int(struct.unpack("<" + code, data)[0])
    except struct.error as error:
        raise DamagedRecordError(f"a number of {struct.calcsize(code)} bytes has {len(data)}") from error
