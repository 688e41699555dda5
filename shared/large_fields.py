"""Large fields of a protocol buffer, read and written by hand: a picture costs a copy less each way so.

What is small beside them is read and written by the library.
"""

from collections.abc import Iterator

from shared import varints
from shared.compression import Buffer

MAX_FIELDS = 4096  # Of one message: two bytes can be a field, and each takes a turn of ours.

_VARINT, _BYTES = 0, 2  # How a field's value lies,
_SIZES = {1: 8, 5: 4}  # and of those that have one size, that; the two other kinds are obsolete.
_KIND = 7  # The bits of a tag that say how the value lies.
_MORE = 0x80
_LONGEST = 10  # Bytes of a number.


class FieldsError(ValueError):
    """Bytes that are no protocol buffer."""


def head(number: int, length: int) -> bytes:
    """What stands before the value of a field of bytes."""
    return varints.written(number << 3 | _BYTES) + varints.written(length)


def split(data: Buffer, number: int) -> tuple[bytes, list[memoryview]]:
    """A message without its fields of bytes of that number, and the values of those, without a copy.

    Raises:
        FieldsError: it is cut off, has an obsolete kind of field, or more fields than MAX_FIELDS.
    """
    others, values = cut(data, number)
    return others, values[number]


def cut(data: Buffer, *numbers: int) -> tuple[bytes, dict[int, list[memoryview]]]:
    """As `split`, for several numbers."""
    view = memoryview(data)
    tags = {number << 3 | _BYTES: number for number in numbers}
    others: list[memoryview] = []
    values: dict[int, list[memoryview]] = {number: [] for number in numbers}
    for tag, start, value, end in _fields(view):
        if tag in tags:
            values[tags[tag]].append(view[value:end])
        else:
            others.append(view[start:end])
    return b"".join(others), values


def fields(data: Buffer) -> Iterator[tuple[int, memoryview | None]]:
    """Of each field its number, and the value of one of bytes, without a copy; None of one of another kind.

    Raises:
        FieldsError: as `split`.
    """
    view = memoryview(data)
    for tag, _, value, end in _fields(view):
        yield tag >> 3, view[value:end] if tag & _KIND == _BYTES else None


def _fields(view: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Of each field its tag, where it starts, where its value does (of bytes), and where it ends."""
    at = 0
    for _ in range(MAX_FIELDS):
        if at == len(view):
            return
        start = at
        tag, at = _read(view, at)
        value = at
        kind = tag & _KIND
        if kind == _BYTES:
            length, value = _read(view, at)
            at = value + length
        elif kind in _SIZES:
            at += _SIZES[kind]
        elif kind == _VARINT:
            _, at = _read(view, at)
        else:
            raise FieldsError(f"a field of the obsolete kind {kind}: send the message as its .proto says")
        if at > len(view):
            raise FieldsError("the message ends within a field: send it whole")
        yield tag, start, value, at
    if at != len(view):
        raise FieldsError(f"the message has more than {MAX_FIELDS} fields: send fewer")


def _read(view: memoryview, at: int) -> tuple[int, int]:
    """The number that starts there, and where it ends."""
    number = 0
    for place, byte in enumerate(view[at : at + _LONGEST]):
        number |= (byte & ~_MORE) << 7 * place
        if byte < _MORE:
            return number, at + place + 1
    raise FieldsError("the message ends within a number: send it whole")
