"""The last field of a MessagePack map, `data`, written without a copy of its own.

A library copies a picture into its buffer as it packs; of a raw one that costs more than all the other fields together.
"""

import struct

from shared.compression import Buffer

_EMPTY = b"\xa4data\xc4\x00"  # The name, and no bytes behind it.
_LENGTHS = ((0xC4, struct.Struct(">B")), (0xC5, struct.Struct(">H")), (0xC6, struct.Struct(">I")))


def parts(head: bytes, data: Buffer) -> tuple[bytes, Buffer]:
    """A packed map whose last field is `data`, in two parts to be joined; `head` is the same with an empty `data`."""
    assert head.endswith(_EMPTY), "data must come last"
    kind, length = next(each for each in _LENGTHS if len(data) < 1 << 8 * each[1].size)
    return head[:-2] + bytes((kind,)) + length.pack(len(data)), data
