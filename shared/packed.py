"""`skylane.v1.Packed`: the MessagePack of Skylane's messages as a protocol buffer, as gRPC carries it."""

from shared.bounded_messages import MessageBytesError, parse
from shared.compression import Buffer
from shared.protocol_buffers import message_class

_NAME = "skylane.v1.Packed"


class PackedError(ValueError):
    """Bytes that are no `skylane.v1.Packed`."""


def pack(message: Buffer) -> bytes:
    """The wire form of `Packed{message}`."""
    packed: bytes = message_class(_NAME)(message=bytes(message)).SerializeToString()
    return packed


def unpack(data: Buffer) -> bytes:
    """What `pack` was given.

    Raises:
        PackedError: it is not that.
    """
    try:
        message: bytes = parse(message_class(_NAME), data).message
    except MessageBytesError as error:
        raise PackedError(f"not a {_NAME}: {error}") from error
    return message
