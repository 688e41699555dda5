"""Reading a message's fields: MessagePack from the wire, bounded, every field checked for kind and limits."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgpack

from shared import last_field
from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.geometry import Geometry, GeometryError
from shared.model_card import VERSION_NAME
from shared.plain_text import printable
from shared.stages import Stamp
from shared.topics import FrameId, TopicNameError, checked

VERSION = 1
MAX_MESSAGE_BYTES = 64 << 20
MAX_SIDE = 16384  # Pixels; no picture on the wire is wider or higher.
MAX_NS = 1 << 62
MAX_ITEMS = 256  # Entries of any list or map, but for those of a model's card, which are as many as its classes.
MAX_FRAME_STAMPS = 32  # Of a frame as it is sent; its answer gives them back, with the worker's own behind them, and
MAX_STAMPS = 64  # must find room beside the largest mask that the way back takes.
_MAX_STAGE, _MAX_NODE = 64, 200  # Characters; a node is a role and two names of 64.
_STAMP = [str, str, int]
_MAX_TEXT = 4096
_MAX_BRANCHES = 1 << 12  # Lists and maps of one message: five megabytes of empty maps would take fifty times as much.

B = TypeVar("B")
C = TypeVar("C", bound=StrEnum)


class MessageError(SkylaneError):
    """A message that cannot be accepted. `frame_id` is set where it could still be read, so that it can be answered."""

    def __init__(self, message: str, frame_id: FrameId | None = None) -> None:
        self.frame_id = frame_id
        super().__init__(message)


class Fields:
    """A map from the wire, read field by field; each reader checks kind and bounds. Unknown keys are nobody's business."""

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise MessageError(f"a {type(fields).__name__} where a map belongs")
        self._fields = fields

    @classmethod
    def of_message(
        cls, payload: Buffer, *, most_branches: int = _MAX_BRANCHES, most_items: int = MAX_ITEMS
    ) -> "Fields":
        """Unpack a message of at most so many lists and maps, of at most so many items each, and check its version."""
        if len(payload) > MAX_MESSAGE_BYTES:
            raise MessageError(f"a message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        # Each takes a byte at least: what is no longer than that needs no counting, which is done in Python.
        count = _Counter(most_branches) if len(payload) > most_branches else None
        try:
            fields = msgpack.unpackb(
                payload,
                max_array_len=most_items,
                max_map_len=most_items,
                max_str_len=_MAX_TEXT,
                max_bin_len=MAX_MESSAGE_BYTES,
                max_ext_len=0,
                object_hook=count,
                list_hook=count,
            )
        except (ValueError, msgpack.UnpackException) as error:
            raise MessageError(f"not a MessagePack map: {type(error).__name__} {error}"[:200]) from error
        message = cls(fields)
        if (version := message._fields.get("v")) != VERSION:
            raise message.wrong("v", f"version {_brief(version)} is not spoken here: speak {VERSION}")
        return message

    @classmethod
    def of_message_with_data(cls, payload: Buffer) -> "Fields":
        """As `of_message`, of one that ends with `data`: where that is large, it is a view of `payload`."""
        head, data = last_field.split(payload)
        if len(payload) > MAX_MESSAGE_BYTES:
            raise MessageError(f"a message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        message = cls.of_message(head)
        if data is None:
            return message
        if next(reversed(message._fields)) != last_field.KEY:  # It was a part of another field.
            return cls.of_message(payload)
        message._fields[last_field.KEY] = data
        return message

    def wrong(self, key: str, what: str) -> MessageError:
        """The error for a field, with the frame's id where that can be read."""
        return MessageError(f"field {key!r}: {what}", _id_of(self._fields))

    def has(self, key: str) -> bool:
        """Whether a field is there and not nil."""
        return self._fields.get(key) is not None

    def get(self, key: str) -> Any:
        """A field of any kind; missing is an error, as for all readers below."""
        if key not in self._fields:
            raise self.wrong(key, "missing")
        return self._fields[key]

    @property
    def id(self) -> FrameId:
        """The field `id`."""
        try:
            return FrameId.parse(self.text("id"))
        except TopicNameError as error:
            raise MessageError(str(error)) from error

    def text(self, key: str) -> str:
        """A text, with a blank for what does not print: it may come to stand in a log, a table or on a terminal."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, f"a text belongs here, not {type(value).__name__}")
        return printable(value)

    def name(self, key: str) -> str:
        """A text that may stand in a topic."""
        try:
            return checked(key, self.text(key))
        except TopicNameError as error:
            raise self.wrong(key, str(error)) from error

    def version(self, key: str) -> str:
        """A model's version."""
        value = self.text(key)
        if not re.match(VERSION_NAME, value) or value.endswith("\n"):
            raise self.wrong(
                key, f"version {value[:80]!r} is not allowed: use 1 to 64 of A-Z a-z 0-9 _ - . and no dot in front"
            )
        return value

    def choice(self, key: str, choices: type[C]) -> C:
        """One of an enumeration."""
        value = self.text(key)
        try:
            return choices(value)
        except ValueError as error:
            raise self.wrong(key, f"{value[:40]!r} is not one of {', '.join(choices)}") from error

    def integer(self, key: str, least: int, most: int) -> int:
        """A whole number within bounds."""
        value = self.get(key)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most} belongs here, not {_brief(value)}")
        return value

    def number(self, key: str, least: float, most: float) -> float:
        """A number within bounds, whole or not."""
        value = self.get(key)
        if type(value) not in (int, float) or not least <= value <= most:
            raise self.wrong(key, f"a number from {least:g} to {most:g} belongs here, not {_brief(value)}")
        return float(value)

    def flag(self, key: str) -> bool:
        """A truth value."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "it is true or false")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """Texts that may stand in a topic."""
        try:
            return tuple(checked(key, name) if isinstance(name, str) else _no_name(name) for name in self.list(key))
        except TopicNameError as error:
            raise self.wrong(key, str(error)) from error

    def bytes(self, key: str) -> Buffer:
        """Bytes, or a view of some."""
        value = self.get(key)
        if not isinstance(value, bytes | memoryview):
            raise self.wrong(key, f"bytes belong here, not {type(value).__name__}")
        return value

    def list(self, key: str) -> list[Any]:
        """A list of anything."""
        value = self.get(key)
        if not isinstance(value, list):
            raise self.wrong(key, f"a list belongs here, not {type(value).__name__}")
        return value

    def map(self, key: str) -> dict[Any, Any]:
        """A map of anything."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, f"a map belongs here, not {type(value).__name__}")
        return value

    def shape(self, key: str, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a picture with as many dimensions as one of `dimensions`."""
        value = self.list(key)
        if len(value) not in dimensions or not all(type(side) is int and 0 < side <= MAX_SIDE for side in value):
            sides = ", ".join(_brief(side) for side in value[:4])
            raise self.wrong(key, f"[{sides}] is not a picture's shape with sides up to {MAX_SIDE}")
        return tuple(value)

    def geometry(self, key: str) -> Geometry:
        """A geometry."""
        try:
            return Geometry.from_wire(self.get(key))
        except GeometryError as error:
            raise self.wrong(key, str(error)) from error

    def stamps(self, key: str, most: int = MAX_STAMPS) -> tuple[Stamp, ...]:
        """A list of at most so many stamps; those of unknown stages are kept."""
        items = self.list(key)
        if len(items) > most:
            raise self.wrong(key, f"{len(items)} stamps are more than {most}")
        return tuple([self._stamp(key, item) for item in items])

    def _stamp(self, key: str, item: object) -> Stamp:
        if type(item) is not list or [type(part) for part in item] != _STAMP:
            raise self.wrong(key, "a stamp is [stage, node, nanoseconds]")
        stamp = Stamp(*item)
        if len(stamp.stage) > _MAX_STAGE or len(stamp.node) > _MAX_NODE:
            raise self.wrong(key, f"a stage has up to {_MAX_STAGE} characters and a node up to {_MAX_NODE}")
        if not 0 <= stamp.at_ns <= MAX_NS:
            raise self.wrong(key, f"{stamp.at_ns} ns is no time")
        return stamp


def _no_name(value: object) -> str:
    raise TopicNameError(f"{_brief(value)} is no name")


def _id_of(fields: Mapping[Any, Any]) -> FrameId | None:
    """The frame's id, where a broken message still tells it."""
    told = fields.get("id")
    try:
        return FrameId.parse(told) if isinstance(told, str) else None
    except TopicNameError:
        return None


def _brief(value: object) -> str:
    """A value for a message; a text is cut and of a larger thing only the kind is told."""
    if isinstance(value, str):
        return repr(value[:40])
    return str(value) if value is None or isinstance(value, int | float) else type(value).__name__


class _Counter:
    """Lets so many lists and maps pass."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    def __call__(self, branch: B) -> B:
        self._count += 1
        if self._count > self._limit:
            raise ValueError(f"more than {self._limit} lists and maps")
        return branch
