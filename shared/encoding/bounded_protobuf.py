"""Protocol buffers from elsewhere, parsed by the library once one pass over their fields has found what memory that takes.

Two bytes can be a message in a list, and take a hundred when they are parsed; of a list of whole numbers each byte can be
one, and takes eight. All other fields take what they hold.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from shared.encoding.compression import Buffer

MAX_FIELDS = 16_384  # Of a message and of all within it: each takes a turn of ours.
MAX_LIST_BYTES = 16 << 20  # Of all packed lists of whole numbers: eight times as much here, and no other thread runs.

_VARINT, _BYTES = 0, 2  # How a field's value lies (protobuf.dev/programming-guides/encoding),
_SIZES = {1: 8, 5: 4}  # and of those that have one size, that; the two other kinds are obsolete.
_LONGEST = 10  # Bytes of a number,
_LONGEST_TAG = 5  # and of one that names a field.
_LAST_FIELD = (1 << 29) - 1  # The highest number that a field can have.
_FIXED = {  # In a list as in memory.
    FieldDescriptor.CPPTYPE_FLOAT,
    FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_STRING,
}


class ProtobufError(ValueError):
    """Bytes that are no such protocol buffer, or one that would take far more memory than they do."""


def parse(message_class: Any, data: Buffer) -> Any:
    """A message of that class.

    Raises:
        ProtobufError: the bytes are none, or one that takes far more memory than they do.
    """
    _Scales().weigh(memoryview(data), message_class.DESCRIPTOR)
    try:
        return message_class.FromString(bytes(data))
    except DecodeError as error:
        raise ProtobufError("they cannot be read: send the message as its .proto says") from error


def read_bytes_field(data: Buffer, wanted: int) -> memoryview:
    """The last value of a field of bytes, by its number, as a view: a picture is not copied. Empty where there is none.

    Raises:
        ProtobufError: the bytes are no protocol buffer, or one of too many fields.
    """
    found = memoryview(b"")
    for count, (number, value) in enumerate(_fields(memoryview(data)), start=1):
        _check_count(count)
        if number == wanted and value is not None:
            found = value
    return found


def _check_count(fields: int) -> None:
    if fields > MAX_FIELDS:
        raise ProtobufError(f"it has more than {MAX_FIELDS} fields: send fewer")


class _Scales:
    """What has been found of one message so far."""

    def __init__(self) -> None:
        self._fields = 0
        self._list_bytes = 0

    def weigh(self, data: memoryview, kind: Descriptor) -> None:
        """Look at every field of a message and of those within it: none of ours can hold another of its own kind."""
        for number, value in _fields(data):
            self._fields += 1
            _check_count(self._fields)
            told = kind.fields_by_number.get(number)
            if told is None or value is None:
                continue
            if told.message_type is not None:
                self.weigh(value, told.message_type)
            elif told.cpp_type not in _FIXED:
                self._list_bytes += len(value)
                if self._list_bytes > MAX_LIST_BYTES:
                    raise ProtobufError(
                        f"its lists of whole numbers take more than {MAX_LIST_BYTES} bytes: send them raw"
                    )


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Of each field its number, and the value of one of bytes, without a copy; None of one of another kind."""
    at = 0
    while at < len(view):
        tag, at = _number(view, at, _LONGEST_TAG)
        if not 1 <= tag >> 3 <= _LAST_FIELD:
            raise ProtobufError(f"a field of the number {tag >> 3}: send the message as its .proto says")
        value, kind = None, tag & 7
        if kind == _BYTES:
            length, at = _number(view, at)
            value = view[at : at + length]
            at += length
        elif kind == _VARINT:
            _, at = _number(view, at)
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise ProtobufError(f"a field of the obsolete kind {kind}: send the message as its .proto says")
        if at > len(view):
            raise ProtobufError("the message ends within a field: send it whole")
        yield tag >> 3, value


def _number(view: memoryview, at: int, longest: int = _LONGEST) -> tuple[int, int]:
    """The number that starts there, seven bits a byte and the least first, and where it ends."""
    number = 0
    for place, byte in enumerate(view[at : at + longest]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004  The bit that says whether another byte follows.
            return number, at + place + 1
    raise ProtobufError("the message ends within a number, or that has too many bytes: send it whole")
