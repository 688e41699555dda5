"""`skylane.v1.Packed`, written and read by hand: a picture in a protocol buffer costs a copy each way less so."""

from shared.compression import Buffer
from shared.large_fields import FieldsError, head, split

_MESSAGE = 1  # The field's number.


class PackedError(ValueError):
    """Bytes that are no `skylane.v1.Packed`."""


def pack(*parts: Buffer) -> bytes:
    """The wire form of `Packed{message}`, whose message is the parts joined."""
    return b"".join(packed_parts(*parts))


def packed_parts(*parts: Buffer) -> tuple[Buffer, ...]:
    """The same, in parts to be joined."""
    return head(_MESSAGE, sum(map(len, parts))), *parts


def unpack(data: Buffer) -> memoryview:
    """What `pack` was given, without a copy.

    Raises:
        PackedError: it is not that.
    """
    try:
        others, messages = split(data, _MESSAGE)
    except FieldsError as error:
        raise PackedError(f"not a skylane.v1.Packed: {error}") from error
    if others or len(messages) > 1:
        raise PackedError("not a skylane.v1.Packed: send field 1, bytes")
    return messages[0] if messages else memoryview(b"")  # Empty is what is not sent.
