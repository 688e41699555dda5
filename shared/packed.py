"""`skylane.v1.Packed`, written and read by hand: a picture in a protocol buffer costs a copy each way less so."""

from shared.compression import Buffer

_TAG = b"\x0a"  # Field 1, of a length that follows.
_MORE = 0x80
_LONGEST = 10  # Bytes of a length.


class PackedError(ValueError):
    """Bytes that are no `skylane.v1.Packed`."""


def pack(message: bytes) -> bytes:
    """The wire form of `Packed{message}`."""
    length = len(message)
    head = bytearray(_TAG)
    while length >= _MORE:
        head.append(length & 0x7F | _MORE)
        length >>= 7
    head.append(length)
    return bytes(head) + message


def unpack(data: Buffer) -> memoryview:
    """What `pack` was given, without a copy.

    Raises:
        PackedError: it is not that.
    """
    view = memoryview(data)
    if not view:
        return view  # A message without its field: empty.
    length = 0
    for at, byte in enumerate(view[1 : 1 + _LONGEST]):
        length |= (byte & 0x7F) << 7 * at
        if byte < _MORE:
            body = view[2 + at :]
            if view[0] != _TAG[0] or len(body) != length:
                break
            return body
    raise PackedError("not a skylane.v1.Packed: send field 1, bytes")
