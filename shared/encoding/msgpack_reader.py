"""Reading a message's fields: MessagePack from the wire, bounded, every field checked for kind and limits."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.field_types import MAX_TEXT
from shared.errors import SkylaneError
from shared.messages.model_card import VERSION_NAME
from shared.messages.topics import FrameId, TopicNameError, checked
from shared.sanitize import printable

VERSION: Final = 1
MAX_MESSAGE_BYTES = 64 << 20
MAX_ITEMS = 256  # Entries of any list or map, but for those of a model's card, which are as many as its classes.
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
                max_str_len=MAX_TEXT,
                max_bin_len=MAX_MESSAGE_BYTES,
                max_ext_len=0,
                object_hook=count,
                list_hook=count,
            )
        except (ValueError, msgpack.UnpackException) as error:
            raise MessageError(f"not a MessagePack map: {type(error).__name__} {error}"[:200]) from error
        message = cls(fields)
        if (version := message._fields.get("v")) != VERSION:
            raise message.wrong("v", f"version {brief(version)} is not spoken here: speak {VERSION}")
        return message

    def wrong(self, key: str, what: str) -> MessageError:
        """The error for a field, with the frame's id where that can be read."""
        return MessageError(f"field {key!r}: {what}", _id_of(self._fields))

    def has(self, key: str) -> bool:
        """Whether a field is there and not nil."""
        return self._fields.get(key) is not None

    @property
    def whole(self) -> Mapping[Any, Any]:
        """The map itself, unchecked."""
        return self._fields

    @property
    def told_id(self) -> FrameId | None:
        """The frame's id, where it can be read."""
        return _id_of(self._fields)

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
            raise self.wrong(key, f"a whole number from {least} to {most} belongs here, not {brief(value)}")
        return value

    def number(self, key: str, least: float, most: float) -> float:
        """A number within bounds, whole or not."""
        value = self.get(key)
        if type(value) not in (int, float) or not least <= value <= most:
            raise self.wrong(key, f"a number from {least:g} to {most:g} belongs here, not {brief(value)}")
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


def _no_name(value: object) -> str:
    raise TopicNameError(f"{brief(value)} is no name")


def _id_of(fields: Mapping[Any, Any]) -> FrameId | None:
    """The frame's id, where a broken message still tells it."""
    told = fields.get("id")
    try:
        return FrameId.parse(told) if isinstance(told, str) else None
    except TopicNameError:
        return None


def brief(value: object) -> str:
    """A value for a message; a text is cut, and of a larger thing only the kind and the size are told."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, list | dict | bytes):
        return f"{type(value).__name__} of {len(value)}"
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
