"""The head of a frame: what a queue must know of it, read from the first bytes of its message, before its picture."""

from dataclasses import dataclass
from typing import Any

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.field_types import MAX_NS
from shared.encoding.msgpack_reader import MAX_ITEMS
from shared.stages import Stage

_HEAD_BYTES = 4096  # All but the picture takes about a quarter of it.
_MAX_TEXT = 512
_MAX_KEYS = 32
_MAX_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What the first bytes tell; None where they do not, or tell it wrongly: the message as a whole is checked later."""

    due_ns: int | None = None  # By the vehicle's own clock: compare frames of one vehicle only.
    budget_ms: int | None = None
    version: str | None = None
    attempt: int = 1


EMPTY_HEADER = FrameHeader()


def peek(payload: Buffer) -> FrameHeader:
    """Read a frame message's head, up to its `data`; takes microseconds, never fails and keeps nothing of `payload`."""
    fields: dict[str, Any] = {}
    unpacker = msgpack.Unpacker(
        max_buffer_size=_HEAD_BYTES,
        max_str_len=_MAX_TEXT,
        max_bin_len=_MAX_TEXT,
        max_array_len=MAX_ITEMS,
        max_map_len=MAX_ITEMS,
        max_ext_len=0,
    )
    unpacker.feed(memoryview(payload)[:_HEAD_BYTES])
    try:
        for _ in range(min(unpacker.read_map_header(), _MAX_KEYS)):
            key = unpacker.unpack()
            if key == "data":
                break
            value = unpacker.unpack()
            if isinstance(key, str):  # Any other might be lists in lists, too deep to compare.
                fields[key] = value
    except (ValueError, msgpack.UnpackException):
        pass  # What was read until there is the head.
    version = fields.get("version")
    return FrameHeader(
        due_ns=_due_ns(fields.get("stamps")),
        budget_ms=_whole(fields.get("budget_ms"), _MAX_MS),
        version=version if isinstance(version, str) else None,
        attempt=_whole(fields.get("attempt"), 100) or 1,
    )


def _due_ns(stamps: object) -> int | None:
    for stamp in stamps if isinstance(stamps, list) else ():
        match stamp:
            case [Stage.DUE.value, str(), int(at_ns)]:
                return _whole(at_ns, MAX_NS)
    return None


def _whole(value: object, most: int) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None
