"""The header of a frame message: the fields that a queue needs, read from its first bytes without decoding the image."""

from dataclasses import dataclass
from typing import Any

import msgpack

from shared.encoding.compression import Buffer
from shared.messages.deadline import Deadline
from shared.messages.field_types import MAX_MS, MAX_NS
from shared.messages.msgpack_reader import MAX_ITEMS
from shared.stages import Stage

_HEADER_BYTES = 4096  # All fields before the image take about 1 kB.
_MAX_TEXT = 512
_MAX_KEYS = 32


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Selected fields of a frame message. Missing or invalid ones have their defaults; the whole message is validated later."""

    due_ns: int | None = None  # Vehicle clock: comparable only between frames of the same vehicle.
    deadline: Deadline = Deadline.NEVER
    version: str | None = None
    attempt: int = 1


EMPTY_HEADER = FrameHeader()


def peek(payload: Buffer, received_ns: int | None = None) -> FrameHeader:
    """Reads the header of a frame message, up to `data`. Takes microseconds, never fails and copies what it keeps.

    The deadline counts from `received_ns`, by default now.
    """
    fields: dict[str, Any] = {}
    unpacker = msgpack.Unpacker(
        max_buffer_size=_HEADER_BYTES,
        max_str_len=_MAX_TEXT,
        max_bin_len=_MAX_TEXT,
        max_array_len=MAX_ITEMS,
        max_map_len=MAX_ITEMS,
        max_ext_len=0,
    )
    unpacker.feed(memoryview(payload)[:_HEADER_BYTES])
    try:
        for _ in range(min(unpacker.read_map_header(), _MAX_KEYS)):
            key = unpacker.unpack()
            if key == "data":
                break
            value = unpacker.unpack()
            if isinstance(key, str):  # Other types may not be hashable, or nested too deeply to be hashed.
                fields[key] = value
    except (ValueError, msgpack.UnpackException):
        pass  # The fields read so far are kept.
    version = fields.get("version")
    return FrameHeader(
        due_ns=_due_ns(fields.get("stamps")),
        deadline=Deadline.after_ms(_integer(fields.get("budget_ms"), MAX_MS), received_ns),
        version=version if isinstance(version, str) else None,
        attempt=_integer(fields.get("attempt"), 100) or 1,
    )


def _due_ns(stamps: object) -> int | None:
    for stamp in stamps if isinstance(stamps, list) else ():
        match stamp:
            case [Stage.DUE.value, str(), int(at_ns)]:
                return _integer(at_ns, MAX_NS)
    return None


def _integer(value: object, maximum: int) -> int | None:
    return value if type(value) is int and 0 <= value <= maximum else None
