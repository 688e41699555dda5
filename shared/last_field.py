"""The last field of a MessagePack map, `data`, where it is large: written and read without a copy of its own.

MessagePack's library copies a picture into its buffer as it packs and out of it as it unpacks; of a raw picture each
costs more than all the other fields together.
"""

import struct

from shared.compression import Buffer

KEY = "data"

_LARGE = 1 << 16  # Bytes from which on MessagePack gives a length of four.
_EMPTY = b"\xc4\x00"
_MARK = b"\xa4data\xc6"  # The key, and that bytes of a four-byte length follow.
_LENGTH = struct.Struct(">I")
_HEAD_BYTES = 1 << 16  # In which the mark must come; all other fields take less.


def is_large(data: Buffer) -> bool:
    """Whether it pays to keep such data out of the library's hands."""
    return len(data) >= _LARGE


def parts(head: bytes, data: Buffer) -> tuple[bytes, Buffer]:
    """A packed map whose last field is `data`, in two parts to be joined; `head` is the same with an empty `data`."""
    assert head.endswith(_MARK[:-1] + _EMPTY), "data must come last"
    return head[: -len(_EMPTY)] + _MARK[-1:] + _LENGTH.pack(len(data)), data


def split(payload: Buffer) -> tuple[Buffer, memoryview | None]:
    """The map with an empty `data`, and a view of what it holds; None, and all of it, where that is not large or last.

    Reads nothing else: whether the rest is a map at all is found out by whoever unpacks it.
    """
    view = memoryview(payload)
    start = bytes(view[:_HEAD_BYTES])
    at = start.find(_MARK) + len(_MARK)
    if at < len(_MARK) or len(start) < at + _LENGTH.size:
        return payload, None
    (length,) = _LENGTH.unpack_from(start, at)
    if length < _LARGE or at + _LENGTH.size + length != len(view):
        return payload, None
    return start[: at - 1] + _EMPTY, view[at + _LENGTH.size :]
