"""Reads the fields of a protocol buffer one by one, without the protobuf library.

The wire format: protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator

from shared.compression import Buffer

MAX_FIELDS = 16_384  # Fields of a message, including nested ones: each costs an iteration in Python.

# Wire types. The two group types (3 and 4) are deprecated.
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}  # Wire type to bytes.
_VARINT_BYTES = 10  # Length limit of a varint.
_TAG_BYTES = 5  # Length limit of a field tag.
_LAST_FIELD_NUMBER = (1 << 29) - 1


class ProtobufError(ValueError):
    """The input is not the expected protocol buffer, or would need far more memory than its size."""


def read_bytes_field(data: Buffer, field_number: int) -> memoryview:
    """Returns the last value of a `bytes` field as a view, so that a large image is not copied; empty if it is missing.

    Raises:
        ProtobufError: The data is not a protocol buffer or has too many fields.
    """
    found = memoryview(b"")
    for count, (number, value) in enumerate(fields(memoryview(data)), start=1):
        check_count(count)
        if number == field_number and not isinstance(value, int):
            found = value
    return found


def check_count(count: int) -> None:
    """Raises a ProtobufError if a message has more than MAX_FIELDS fields."""
    if count > MAX_FIELDS:
        raise ProtobufError(f"it has more than {MAX_FIELDS} fields: send fewer")


def fields(view: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yields each field's number and its value: a view if the field is length-delimited, otherwise an unsigned number.

    Raises:
        ProtobufError: the data is not a protocol buffer.
    """
    at = 0
    while at < len(view):
        tag, at = _varint(view, at, _TAG_BYTES)
        if not 1 <= tag >> 3 <= _LAST_FIELD_NUMBER:
            raise ProtobufError(f"field number {tag >> 3} is invalid: send the message as its .proto says")
        value: memoryview | int
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            length, at = _varint(view, at)
            value = view[at : at + length]
            at += length
        elif wire_type == _VARINT:
            value, at = _varint(view, at)
        elif wire_type in _FIXED_SIZES:
            value = int.from_bytes(view[at : at + _FIXED_SIZES[wire_type]], "little")
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
        if byte < 0x80:  # The continuation bit.
            return number, start + index + 1
    raise ProtobufError("the message ends within a number, or that has too many bytes: send it whole")


_FIELD = 1
_TAG = bytes([_FIELD << 3 | 2])  # Wire type 2, length-delimited: protobuf.dev/programming-guides/encoding.


class PackedError(ValueError):
    """The data is not a `skylane.v1.Packed` message."""


def pack(message: Buffer) -> bytes:
    """Encodes `Packed{message}`."""
    length, rest = bytearray(), len(message)
    while rest > 0x7F:  # A varint: seven bits a byte, the lowest first.
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return b"".join((_TAG, length, message))


def unpack(data: Buffer) -> memoryview:
    """Returns the `message` field as a view.

    Raises:
        PackedError: The data is not such a message.
    """
    try:
        return read_bytes_field(data, _FIELD)
    except ProtobufError as error:
        raise PackedError(f"not a skylane.v1.Packed: {error}") from error
