"""Messages declared as msgspec structs: decoded and encoded by msgpack, validated by msgspec in C.

For the messages of every frame, where reading field by field with `FieldReader` would be too slow. The errors are worded
like those of `FieldReader`.
"""

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgpack
import msgspec
from msgspec import inspect

from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import FieldReader, MessageError, brief
from shared.sanitize import printable

StructT = TypeVar("StructT", bound=msgspec.Struct)

_BINARY = (bytes, memoryview)  # Kept as they are; by default, msgspec would also accept base64 strings.

# Anchored at the end: what comes before may contain text chosen by the sender.
_FIELD_PATH = re.compile(r" - at `\$\.([\w.\[\]]+)`\Z", re.ASCII)
_MISSING = re.compile(r"Object missing required field `(\w+)`", re.ASCII)
_PATH_STEP = re.compile(r"[0-9]+|\w+", re.ASCII)


class Schema(Generic[StructT]):
    """Decodes and encodes messages of one struct type."""

    def __init__(self, struct: type[StructT]) -> None:
        self._struct = struct

    def read(self, payload: Buffer) -> StructT:
        """Decodes and validates a message. Unknown keys are ignored.

        Raises:
            MessageError: The payload is not such a message, or a field is missing, of a wrong type or out of range.
        """
        reader = FieldReader.unpack(payload)
        try:
            return msgspec.convert(reader.fields, self._struct, builtin_types=_BINARY)
        except msgspec.ValidationError as error:
            raise self._field_error(reader, str(error)) from error

    def write(self, message: StructT) -> bytes:
        """Encodes a message."""
        packed: bytes = msgpack.packb(msgspec.to_builtins(message, builtin_types=_BINARY))
        return packed

    def _field_error(self, reader: FieldReader, problem: str) -> MessageError:
        """Translates the text of a msgspec error: names the field, the expected type and the value found."""
        path = _path(problem)
        expected, value = inspect.type_info(self._struct), reader.fields
        for step in path:
            inner = _type_of_part(expected, step)
            if inner is None:  # The path is part of a value that the sender chose.
                path = []
                break
            expected, value = inner, _part(value, step)
        if not path:
            return MessageError(f"not a valid message: {printable(problem)}"[:200], reader.frame_id)
        text = "missing" if _MISSING.match(problem) else f"expected {_describe(expected)}, not {brief(value)}"
        inside = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path[1:]).lstrip(".")
        return reader.error(str(path[0]), f"{inside}: {text}" if inside else text)


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
        case inspect.StructType(fields=fields), str():
            return next((field.type for field in fields if field.name == step), None)
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
    inspect.StrType: lambda kind: f"a text of up to {kind.max_length} characters",
    inspect.MemoryViewType: lambda _: "binary data",
    inspect.EnumType: lambda kind: f"one of {', '.join(choice.value for choice in kind.cls)}",
    inspect.LiteralType: lambda kind: f"one of {', '.join(map(str, kind.values))}",
    inspect.VarTupleType: lambda kind: f"a list of up to {kind.max_length} items",
    inspect.NamedTupleType: lambda kind: f"[{', '.join(field.name for field in kind.fields)}]",
    inspect.StructType: lambda _: "a map",
}
