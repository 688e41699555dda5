"""Bounded decoding of MessagePack maps from the network, with a type and range check for every field."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgpack

from shared.encoding.compression import Buffer
from shared.encoding.field_types import MAX_TEXT
from shared.errors import SkylaneError
from shared.messages.model_card import VERSION_NAME
from shared.messages.topics import FrameId, TopicNameError, validate_name
from shared.sanitize import printable

VERSION: Final = 1
MAX_MESSAGE_BYTES = 64 << 20
MAX_ITEMS = 256  # Entries of a list or map; lists of class labels have a higher limit.
_MAX_CONTAINERS = 1 << 12  # Lists and maps in a message; 5 MB of empty maps would need 50 times as much memory.

ContainerT = TypeVar("ContainerT")
EnumT = TypeVar("EnumT", bound=StrEnum)


class MessageError(SkylaneError):
    """A message was rejected. `frame_id` is set when it could be read, so that the sender can be notified."""

    def __init__(self, message: str, frame_id: FrameId | None = None) -> None:
        self.frame_id = frame_id
        super().__init__(message)


class FieldReader:
    """Reads the fields of a decoded map. Unknown keys are ignored.

    Every method that takes a key raises `MessageError` when the field is missing, of a wrong type or out of range.
    """

    def __init__(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise MessageError(f"a {type(fields).__name__} where a map belongs")
        self._fields = fields

    @classmethod
    def unpack(
        cls, payload: Buffer, *, max_containers: int = _MAX_CONTAINERS, max_items: int = MAX_ITEMS
    ) -> "FieldReader":
        """Decodes a message and checks its size and version.

        Args:
            payload: The encoded message.
            max_containers: Limit of lists and maps in the whole message.
            max_items: Limit of entries in each list or map.

        Raises:
            MessageError: The payload exceeds a limit, is not a MessagePack map or has another version.
        """
        if len(payload) > MAX_MESSAGE_BYTES:
            raise MessageError(f"a message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        # Each container takes at least one byte, so a short payload needs no (slow) counting.
        count = _ContainerLimit(max_containers) if len(payload) > max_containers else None
        try:
            fields = msgpack.unpackb(
                payload,
                max_array_len=max_items,
                max_map_len=max_items,
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
            raise message.error("v", f"version {brief(version)} is not supported: send version {VERSION}")
        return message

    @property
    def fields(self) -> Mapping[Any, Any]:
        """The map itself, unchecked."""
        return self._fields

    @property
    def frame_id(self) -> FrameId | None:
        """The frame id, or None if the message has no valid one."""
        frame_id = self._fields.get("id")
        try:
            return FrameId.parse(frame_id) if isinstance(frame_id, str) else None
        except TopicNameError:
            return None

    def error(self, key: str, problem: str) -> MessageError:
        """Creates the error for a field; it carries the frame id if the message has one."""
        return MessageError(f"field {key!r}: {problem}", self.frame_id)

    def has(self, key: str) -> bool:
        """Returns whether a field is present and not nil."""
        return self._fields.get(key) is not None

    def get(self, key: str) -> Any:
        """Returns a field of any type."""
        if key not in self._fields:
            raise self.error(key, "missing")
        return self._fields[key]

    def text(self, key: str) -> str:
        """Returns a string, with every unprintable character replaced by a space: it may be shown on a terminal."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self.error(key, f"expected a text, not {type(value).__name__}")
        return printable(value)

    def name(self, key: str) -> str:
        """Returns a string that is a valid topic level."""
        try:
            return validate_name(key, self.text(key))
        except TopicNameError as error:
            raise self.error(key, str(error)) from error

    def version(self, key: str) -> str:
        """Returns a model version."""
        value = self.text(key)
        if not re.match(VERSION_NAME, value) or value.endswith("\n"):
            raise self.error(
                key, f"version {value[:80]!r} is not allowed: use 1 to 64 of A-Z a-z 0-9 _ - . and no dot in front"
            )
        return value

    def choice(self, key: str, choices: type[EnumT]) -> EnumT:
        """Returns a member of an enumeration."""
        value = self.text(key)
        try:
            return choices(value)
        except ValueError as error:
            raise self.error(key, f"{value[:40]!r} is not one of {', '.join(choices)}") from error

    def integer(self, key: str, minimum: int, maximum: int) -> int:
        """Returns an integer within limits."""
        value = self.get(key)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.error(key, f"expected an integer from {minimum} to {maximum}, not {brief(value)}")
        return value

    def number(self, key: str, minimum: float, maximum: float) -> float:
        """Returns an integer or float within limits."""
        value = self.get(key)
        if type(value) not in (int, float) or not minimum <= value <= maximum:
            raise self.error(key, f"expected a number from {minimum:g} to {maximum:g}, not {brief(value)}")
        return float(value)

    def flag(self, key: str) -> bool:
        """Returns a boolean."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.error(key, "expected true or false")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """Returns a list of strings that are valid topic levels."""
        names = self.list(key)
        try:
            for name in names:
                if not isinstance(name, str):
                    raise self.error(key, f"expected texts, not {brief(name)}")
                validate_name(key, name)
        except TopicNameError as error:
            raise self.error(key, str(error)) from error
        return tuple(names)

    def list(self, key: str) -> list[Any]:
        """Returns a list with items of any type."""
        value = self.get(key)
        if not isinstance(value, list):
            raise self.error(key, f"expected a list, not {type(value).__name__}")
        return value

    def map(self, key: str) -> dict[Any, Any]:
        """Returns a map with values of any type."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self.error(key, f"expected a map, not {type(value).__name__}")
        return value


def brief(value: object) -> str:
    """Formats a value for an error message: truncates strings, and gives only type and length of containers."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, list | dict | bytes):
        return f"{type(value).__name__} of {len(value)}"
    return str(value) if value is None or isinstance(value, int | float) else type(value).__name__


class _ContainerLimit:
    """An unpacking hook that raises ValueError after `limit` lists and maps."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    def __call__(self, container: ContainerT) -> ContainerT:
        self._count += 1
        if self._count > self._limit:
            raise ValueError(f"more than {self._limit} lists and maps")
        return container
