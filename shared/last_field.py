"""The last field of a MessagePack map, `data`, written without a copy of its own.

A library copies a picture into its buffer as it packs; of a raw one that costs more than all the other fields together.
"""

import struct

from shared.compression import Buffer

KEY = "data"

_NAME = b"\xa4" + KEY.encode()
_EMPTY = _NAME + b"\xc4\x00"  # And no bytes behind it.
_LENGTHS = ((0xC4, struct.Struct(">B")), (0xC5, struct.Struct(">H")), (0xC6, struct.Struct(">I")))
_KINDS = dict(_LENGTHS)
_MOST_BYTES = 1 << 13  # Of all other fields of a message of ours, but for the longest names in every stamp.


def parts(head: bytes, data: Buffer) -> tuple[bytes, Buffer]:
    """A packed map whose last field is `data`, in two parts to be joined; `head` is the same with an empty `data`."""
    assert head.endswith(_EMPTY), "data must come last"
    size = len(data)
    kind, length = _LENGTHS[(size >> 8 > 0) + (size >> 16 > 0)]
    return head[:-2] + bytes((kind,)) + length.pack(size), data


def is_most_of(payload: Buffer) -> bool:
    """Whether all but a few kilobytes of a message are such a field, from the first place on that looks like it."""
    if len(payload) <= _MOST_BYTES:
        return True
    view = memoryview(payload)
    begin = bytes(view[:_MOST_BYTES]).find(_NAME) + len(_NAME)
    length = _KINDS.get(view[begin]) if begin >= len(_NAME) else None
    if length is None or begin + 1 + length.size > len(view):
        return False
    return bool(begin + 1 + length.size + length.unpack_from(view, begin + 1)[0] == len(view))
