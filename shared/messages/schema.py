"""Messages declared as msgspec structs or dataclasses: decoded and encoded by msgpack, validated by msgspec in C."""

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgpack
import msgspec
from msgspec import inspect

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.messages.msgpack_reader import VERSION, MessageError, brief, field_error, unpack_map
from shared.sanitize import printable

MessageT = TypeVar("MessageT")

_BINARY = (bytes, memoryview)  # Kept as they are; by default, msgspec would also accept base64 strings.

# Anchored at the end: what comes before may contain text chosen by the sender.
_FIELD_PATH = re.compile(r" - at `\$\.([\w.\[\]]+)`\Z", re.ASCII)
_MISSING = re.compile(r"Object missing required field `(\w+)`", re.ASCII)
_TEXTUAL = (str, dict, list)  # Types that may contain texts; without a call for the others, frames are read faster.
_PRINTABLE_LEVELS = 5  # Of lists and maps; the names of a status are on the fifth.
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
