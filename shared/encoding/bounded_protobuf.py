"""A protocol-buffer parser for untrusted input, with limits on the number of fields and on packed lists.

A parsed message can take far more memory than its bytes: 50 times as much for repeated empty messages, 8 times for packed
integers. One pass over the fields therefore checks the limits before the protobuf library parses the message.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from shared.encoding.compression import Buffer

MAX_FIELDS = 16_384  # Fields of a message, including nested ones: each costs an iteration in Python.
MAX_LIST_BYTES = 16 << 20  # Bytes of all packed integer lists; parsing them takes 8 times as much and holds the GIL.

# Wire types: protobuf.dev/programming-guides/encoding. The two group types (3 and 4) are deprecated.
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}  # Wire type to bytes.
_VARINT_BYTES = 10  # Length limit of a varint.
_TAG_BYTES = 5  # Length limit of a field tag.
_LAST_FIELD_NUMBER = (1 << 29) - 1
_SAME_SIZE_IN_MEMORY = {
    FieldDescriptor.CPPTYPE_FLOAT,
    FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_STRING,
}


class ProtobufError(ValueError):
    """The input is not the expected protocol buffer, or would need far more memory than its size."""


def parse(message_class: Any, data: Buffer) -> Any:
    """Parses a message of the given class.

    Raises:
        ProtobufError: The data is not such a message or exceeds a limit.
    """
    _LimitCheck().check(memoryview(data), message_class.DESCRIPTOR)
    try:
        return message_class.FromString(bytes(data))
    except DecodeError as error:
        raise ProtobufError("they cannot be read: send the message as its .proto says") from error


def read_bytes_field(data: Buffer, field_number: int) -> memoryview:
    """Returns the last value of a `bytes` field as a view, so that a large image is not copied; empty if it is missing.

    Raises:
        ProtobufError: The data is not a protocol buffer or has too many fields.
    """
    found = memoryview(b"")
    for count, (number, value) in enumerate(_fields(memoryview(data)), start=1):
        _check_count(count)
        if number == field_number and value is not None:
            found = value
    return found


def _check_count(fields: int) -> None:
    if fields > MAX_FIELDS:
        raise ProtobufError(f"it has more than {MAX_FIELDS} fields: send fewer")


class _LimitCheck:
    """Counts the fields and list bytes of one message."""

    def __init__(self) -> None:
        self._fields = 0
        self._list_bytes = 0

    def check(self, data: memoryview, descriptor: Descriptor) -> None:
        """Checks a message and its nested messages; the recursion ends because none of our types contains itself."""
        for number, value in _fields(data):
            self._fields += 1
            _check_count(self._fields)
            field = descriptor.fields_by_number.get(number)
            if field is None or value is None:
                continue
            if field.message_type is not None:
                self.check(value, field.message_type)
            elif field.cpp_type not in _SAME_SIZE_IN_MEMORY:
                self._list_bytes += len(value)
                if self._list_bytes > MAX_LIST_BYTES:
                    raise ProtobufError(f"its lists of integers take more than {MAX_LIST_BYTES} bytes: send them raw")


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Yields each field's number and, for a length-delimited field, a view of its value (else None)."""
    at = 0
    while at < len(view):
        tag, at = _varint(view, at, _TAG_BYTES)
        if not 1 <= tag >> 3 <= _LAST_FIELD_NUMBER:
            raise ProtobufError(f"field number {tag >> 3} is invalid: send the message as its .proto says")
        value, wire_type = None, tag & 7
        if wire_type == _LENGTH_DELIMITED:
            length, at = _varint(view, at)
            value = view[at : at + length]
            at += length
        elif wire_type == _VARINT:
            _, at = _varint(view, at)
        elif wire_type in _FIXED_SIZES:
            at += _FIXED_SIZES[wire_type]
        else:
            raise ProtobufError(f"a field has the unsupported wire type {wire_type}: send it as its .proto says")
        if at > len(view):
            raise ProtobufError("the message ends within a field: send it whole")
        yield tag >> 3, value


def _varint(view: memoryview, start: int, max_bytes: int = _VARINT_BYTES) -> tuple[int, int]:
    """Returns the varint at `start` and the position after it."""
    number = 0
    for index, byte in enumerate(view[start : start + max_bytes]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004  The continuation bit.
            return number, start + index + 1
    raise ProtobufError("the message ends within a number, or that has too many bytes: send it whole")
