"""Encodes and decodes `skylane.v1.Packed`, the protocol buffer that carries a MessagePack message over gRPC.

    message Packed { bytes message = 1; }

Not done by the protobuf library, because it would copy each image twice.
"""

from shared.encoding.compression import Buffer
from shared.encoding.protobuf_fields import ProtobufError, read_bytes_field

_FIELD = 1
_TAG = bytes([_FIELD << 3 | 2])  # Wire type 2, length-delimited: protobuf.dev/programming-guides/encoding.


class PackedError(ValueError):
    """The data is not a `skylane.v1.Packed` message."""


def pack(message: Buffer) -> bytes:
    """Encodes `Packed{message}`."""
    length, rest = bytearray(), len(message)
    while rest > 0x7F:  # noqa: PLR2004  A varint: seven bits a byte, the lowest first.
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
