"""`skylane.v1.Packed`: the MessagePack of Skylane's messages as a protocol buffer, as gRPC carries it.

    message Packed { bytes message = 1; }

Made and read here rather than by the library, which copies a picture twice each way.
"""

from shared.encoding.bounded_protobuf import ProtobufError, read_bytes_field
from shared.encoding.compression import Buffer

_FIELD = 1
_TAG = bytes([_FIELD << 3 | 2])  # A field of bytes: protobuf.dev/programming-guides/encoding.


class PackedError(ValueError):
    """Bytes that are no `skylane.v1.Packed`."""


def pack(message: Buffer) -> bytes:
    """The wire form of `Packed{message}`."""
    length, left = bytearray(), len(message)
    while left > 0x7F:  # noqa: PLR2004  Seven bits a byte, the least first.
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return b"".join((_TAG, length, message))


def unpack(data: Buffer) -> memoryview:
    """What `pack` was given, as a view.

    Raises:
        PackedError: it is not that.
    """
    try:
        return read_bytes_field(data, _FIELD)
    except ProtobufError as error:
        raise PackedError(f"not a skylane.v1.Packed: {error}") from error
