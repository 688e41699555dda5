"""Messages of the network in MessagePack: bounded decoding, the types of their fields with their limits, and their schemas.

A `description` appears in the error of an invalid field. msgspec validates the fields in C.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Generic, TypeVar

import msgpack
import msgspec
from msgspec import Meta, inspect

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.messages.topics import NAME, FrameId, TopicNameError
from shared.sanitize import printable

MAX_NS = 1 << 62
MAX_MS = 86_400_000  # One day.
MAX_TEXT = 4096  # Characters.
MAX_SIDE = 16384  # Maximum height and width of a transmitted image, pixels.
# Pattern of a version, which is also a folder name. Dots are allowed: it is never part of a topic.
VERSION_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"
VERSION_RULE = "1 to 64 of A-Z a-z 0-9 _ - . without a leading dot"
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Name = Annotated[  # A valid topic level.
    str, Meta(pattern=rf"\A{NAME.pattern}\Z", description="a name of 1 to 64 of A-Z a-z 0-9 _ -")
]
Version = Annotated[str, Meta(pattern=rf"{VERSION_NAME}\Z", description="a version of 1 to 64 of A-Z a-z 0-9 _ - .")]
Nanoseconds = Annotated[int, Meta(ge=0, le=MAX_NS)]
Side = Annotated[int, Meta(ge=1, le=MAX_SIDE)]
Milliseconds = Annotated[float, Meta(ge=0, le=MAX_MS)]


VERSION: Final = 1
MAX_MESSAGE_BYTES = 64 << 20
MAX_ITEMS = 256  # Entries of a list or map; lists of class labels have a higher limit.
_MAX_CONTAINERS = 1 << 12  # Lists and maps in a message; 5 MB of empty maps would need 50 times as much memory.

ContainerT = TypeVar("ContainerT")
MessageT = TypeVar("MessageT")


class MessageError(SkylaneError):
    """A message was rejected. `frame_id` is set when it could be read, so that the sender can be notified."""

    def __init__(self, message: str, frame_id: FrameId | None = None) -> None:
        self.frame_id = frame_id
        super().__init__(message)


def unpack_map(
    payload: Buffer,
    *,
    noun: str = "a message",
    max_bytes: int = MAX_MESSAGE_BYTES,
    max_containers: int = _MAX_CONTAINERS,
    max_items: int = MAX_ITEMS,
) -> dict[Any, Any]:
    """Decodes a message and checks its size and version.

    Args:
        payload: The encoded message.
        noun: The kind of message, for the error.
        max_bytes: Limit of the payload.
        max_containers: Limit of lists and maps in the whole message.
        max_items: Limit of entries in each list or map.

    Raises:
        MessageError: The payload exceeds a limit, is not a MessagePack map or has another version.
    """
    if len(payload) > max_bytes:
        raise MessageError(f"{noun} of {len(payload)} bytes is over the limit of {max_bytes}")
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
    if not isinstance(fields, dict):
        raise MessageError(f"a {type(fields).__name__} where a map belongs")
    if (version := fields.get("v")) != VERSION:
        raise field_error(fields, "v", f"version {brief(version)} is not supported: send version {VERSION}")
    return fields


def field_error(fields: dict[Any, Any], key: str, problem: str) -> MessageError:
    """Creates the error for a field; it carries the frame id if the message has a valid one."""
    text, frame_id = fields.get("id"), None
    if isinstance(text, str):
        try:
            frame_id = FrameId.parse(text)
        except TopicNameError:
            frame_id = None
    return MessageError(f"field {key!r}: {problem}" if key else problem, frame_id)


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


_BINARY = (bytes, memoryview)  # Kept as they are; by default, msgspec would also accept base64 strings.

# Anchored at the end: what comes before may contain text chosen by the sender.
_FIELD_PATH = re.compile(r" - at `\$\.([\w.\[\]]+)`\Z", re.ASCII)
_MISSING = re.compile(r"Object missing required field `(\w+)`", re.ASCII)
_TEXTUAL = (str, dict, list)  # Types that may contain texts; without a call for the others, frames are read faster.
_PRINTABLE_LEVELS = 5  # Nesting of lists and maps; the names of a status are on the fifth level.
_PATH_STEP = re.compile(r"[0-9]+|\w+|\.{3}", re.ASCII)  # msgspec writes three dots for a key of a map.


class Schema(Generic[MessageT]):
    """Decodes and encodes messages of one type: a map of its fields, and the version `v`."""

    def __init__(self, kind: type[MessageT], *, optional: tuple[str, ...] = (), **limits: Any) -> None:
        """`optional` names the keys that a sender may leave out; `limits` are those of `unpack_map`."""
        self._kind = kind
        self._limits = limits
        self._required = frozenset(_field_names(kind)) - set(optional)

    def read(self, payload: Buffer, **known: Any) -> MessageT:
        """Decodes and validates a message. Unknown keys are ignored; unprintable characters become spaces.

        `known` are fields that are not in the payload.

        Raises:
            MessageError: The payload is not such a message, or a field is missing, of a wrong type or out of range.
        """
        fields = unpack_map(payload, **self._limits) | known
        if missing := self._required.difference(fields):
            raise field_error(fields, min(missing), "missing")
        try:
            return msgspec.convert(_printable(fields), self._kind, builtin_types=_BINARY)
        except msgspec.ValidationError as error:
            raise self._field_error(fields, error) from error

    def write(self, message: MessageT) -> bytes:
        """Encodes a message."""
        packed: bytes = msgpack.packb({"v": VERSION} | msgspec.to_builtins(message, builtin_types=_BINARY))
        return packed

    def _field_error(self, fields: dict[Any, Any], error: msgspec.ValidationError) -> MessageError:
        """Translates a msgspec error: names the field, the expected type and the value found."""
        problem = str(error)
        path = _path(problem)
        expected, value = inspect.type_info(self._kind), fields
        for step in path:
            inner = _type_of_part(expected, step)
            if inner is None:  # The path is part of a value that the sender chose, or leads through a map.
                path = []
                break
            expected, value = inner, _part(value, step)
        if not path:
            return field_error(fields, "", f"not a valid message: {printable(problem)}"[:200])
        if isinstance(error.__cause__, SkylaneError):
            text = str(error.__cause__)
        else:
            text = "missing" if _MISSING.match(problem) else f"expected {_describe(expected)}, not {brief(value)}"
        inside = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[1:]).lstrip(".")
        return field_error(fields, str(path[0]), f"{inside}: {text}" if inside else text)


def _printable(value: Any, levels: int = _PRINTABLE_LEVELS) -> Any:
    """Replaces unprintable characters in texts, which may be shown on a terminal; not in lists of lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict) and levels:
        return {key: _printable(each, levels - 1) if type(each) in _TEXTUAL else each for key, each in value.items()}
    if isinstance(value, list) and levels and not (value and isinstance(value[0], list)):
        return [_printable(each, levels - 1) for each in value]
    return value


def _field_names(kind: Any) -> list[str]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType | inspect.DataclassType)
    return [field.encode_name for field in info.fields]


def _path(problem: str) -> list[str | int]:
    """The path to the field that an error is about, as map keys and list indices; empty if it names no field."""
    place, missing = _FIELD_PATH.search(problem), _MISSING.match(problem)
    path: list[str | int] = (
        [int(step) if step.isdigit() else step for step in _PATH_STEP.findall(place[1])] if place else []
    )
    return [*path, missing[1]] if missing else path


def _part(value: Any, step: str | int) -> Any:
    try:
        return value[step]
    except (LookupError, TypeError):
        return None


def _type_of_part(kind: inspect.Type, step: str | int) -> inspect.Type | None:
    """The declared type of a list item or struct field, or None if there is no such part."""
    kind = _unwrap(kind)
    match kind, step:
        case inspect.VarTupleType(item_type=item), int():
            return item
        case inspect.TupleType(item_types=items), int(index) if index < len(items):
            return items[index]
        case inspect.NamedTupleType(fields=fields), int(index) if index < len(fields):
            return fields[index].type
        case inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields), str():
            return next((field.type for field in fields if field.encode_name == step), None)
    return None


def _unwrap(kind: inspect.Type) -> inspect.Type:
    """The type without its metadata and without `| None`."""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        kind = kind.type if isinstance(kind, inspect.Metadata) else _not_none(kind)
    return kind


def _not_none(kind: inspect.UnionType) -> inspect.Type:
    return next(each for each in kind.types if not isinstance(each, inspect.NoneType))


def _describe(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        return _describe(_not_none(kind))
    if isinstance(kind, inspect.Metadata):
        return str((kind.extra_json_schema or {}).get("description") or _describe(kind.type))
    return _DESCRIPTIONS[type(kind)](kind)


_DESCRIPTIONS: dict[type[inspect.Type], Callable[[Any], str]] = {
    inspect.IntType: lambda kind: f"an integer from {kind.ge} to {kind.le}",
    inspect.FloatType: lambda kind: f"a number from {kind.ge} to {kind.le}",
    inspect.BoolType: lambda _: "true or false",
    inspect.StrType: lambda kind: f"a text of up to {kind.max_length} characters",
    inspect.MemoryViewType: lambda _: "binary data",
    inspect.BytesType: lambda _: "binary data",
    inspect.EnumType: lambda kind: f"one of {', '.join(choice.value for choice in kind.cls)}",
    inspect.LiteralType: lambda kind: f"one of {', '.join(map(str, kind.values))}",
    inspect.DictType: lambda kind: f"a map of up to {kind.max_length} entries",
    inspect.VarTupleType: lambda kind: f"a list of up to {kind.max_length} items",
    inspect.TupleType: lambda kind: f"a list of {len(kind.item_types)} items",
    inspect.NamedTupleType: lambda kind: f"[{', '.join(field.name for field in kind.fields)}]",
    inspect.StructType: lambda _: "a map",
    inspect.DataclassType: lambda _: "a map",
}
