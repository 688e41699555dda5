"""The last field of a MessagePack map, `data`, where it is large: written and read without a copy of its own.

MessagePack's library copies a picture into its buffer as it packs and out of it as it unpacks; of a raw picture each
costs more than all the other fields together.
"""

import struct

from shared.compression import Buffer

KEY = "data"

_LARGE = 1 << 16  # Bytes from which on MessagePack gives a length of four.
_WORTH_IT = 1 << 12  # Bytes from which on it pays to look.
_NAME = b"\xa4data"
_EMPTY = b"\xc4\x00"
_LENGTHS = {0xC5: struct.Struct(">H"), 0xC6: struct.Struct(">I")}  # By the byte behind the name, for bytes follow.
_LARGE_KIND = 0xC6
_HEAD_BYTES = (1 << 12, 1 << 16)  # In which the mark comes mostly, and must: all other fields take less.


def is_large(data: Buffer) -> bool:
    """Whether it pays to keep such data out of the library's hands."""
    return len(data) >= _LARGE


def parts(head: bytes, data: Buffer) -> tuple[bytes, Buffer]:
    """A packed map whose last field is `data`, in two parts to be joined; `head` is the same with an empty `data`."""
    assert head.endswith(_NAME + _EMPTY), "data must come last"
    return head[: -len(_EMPTY)] + bytes((_LARGE_KIND,)) + _LENGTHS[_LARGE_KIND].pack(len(data)), data


def split(payload: Buffer) -> tuple[Buffer, memoryview | None]:
    """The map with an empty `data`, and a view of what it holds; None, and all of it, where that is small or not last.

    Reads nothing else: whether the rest is a map at all is found out by whoever unpacks it.
    """
    view = memoryview(payload)
    for size in _HEAD_BYTES if len(view) >= _WORTH_IT else ():
        start = bytes(view[:size])
        if (at := start.find(_NAME)) < 0:
            continue
        kind = at + len(_NAME)
        length = _LENGTHS.get(view[kind]) if kind < len(view) else None
        begin = kind + 1 + (length.size if length else 0)
        if length is None or begin > len(view) or begin + length.unpack_from(view, kind + 1)[0] != len(view):
            break
        return start[:kind] + _EMPTY, view[begin:]
    return payload, None
