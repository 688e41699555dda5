"""Messages whose fields are declared as types: MessagePack is read and written by msgpack, types are checked by msgspec.

It is for those that every frame takes, there and back: msgspec checks all fields at once, in C. What is wrong with one that
is refused is told in the words of `shared.encoding.msgpack_reader`.
"""

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgpack
import msgspec
from msgspec import inspect

from shared.encoding.compression import Buffer
from shared.encoding.msgpack_reader import Fields, MessageError, brief
from shared.sanitize import printable

M = TypeVar("M", bound=msgspec.Struct)

_BINARY = (bytes, memoryview)  # They stay as they are; msgspec would take base64 for them too.

_PLACE = re.compile(r" - at `\$\.([\w.\[\]]+)`\Z", re.ASCII)  # Behind all that may be the sender's own words.
_MISSING = re.compile(r"Object missing required field `(\w+)`", re.ASCII)
_STEP = re.compile(r"[0-9]+|\w+", re.ASCII)


class Schema(Generic[M]):
    """One kind of message."""

    def __init__(self, kind: type[M]) -> None:
        self._kind = kind

    def read(self, payload: Buffer) -> M:
        """The message in `payload`. Keys that it does not know are nobody's business.

        Raises:
            MessageError: it is none, or a field is missing, of a wrong kind or out of bounds.
        """
        fields = Fields.of_message(payload)
        try:
            return msgspec.convert(fields.whole, self._kind, builtin_types=_BINARY)
        except msgspec.ValidationError as error:
            raise self._problem(fields, str(error)) from error

    def write(self, message: M) -> bytes:
        """The wire form of a message."""
        packed: bytes = msgpack.packb(msgspec.to_builtins(message, builtin_types=_BINARY))
        return packed

    def _problem(self, fields: Fields, problem: str) -> MessageError:
        """What is wrong with a message, in the words of its fields."""
        steps = _steps(problem)
        kind, given = inspect.type_info(self._kind), fields.whole
        for step in steps:
            inner = _part(kind, step)
            if inner is None:  # The sender has put such words into a value.
                steps = []
                break
            kind, given = inner, _at(given, step)
        if not steps:
            return MessageError(f"not a message of ours: {printable(problem)}"[:200], fields.told_id)
        found = "missing" if _MISSING.match(problem) else f"{_said(kind)} belongs here, not {brief(given)}"
        within = "".join(map(_written, steps[1:])).lstrip(".")
        return fields.wrong(str(steps[0]), ": ".join(filter(None, (within, found))))


def _steps(problem: str) -> list[str | int]:
    """The way to the field that a problem is told of: keys of maps and places in lists; none where it is of none."""
    place, missing = _PLACE.search(problem), _MISSING.match(problem)
    steps: list[str | int] = (
        [int(step) if step.isdigit() else step for step in _STEP.findall(place[1])] if place else []
    )
    return [*steps, missing[1]] if missing else steps


def _written(step: str | int) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{step}"


def _at(given: Any, step: str | int) -> Any:
    """A part of what was given; None where there is no such."""
    try:
        return given[step]
    except (LookupError, TypeError):
        return None


def _part(kind: inspect.Type, step: str | int) -> inspect.Type | None:
    """The kind of a part; None where there is no such."""
    kind = _bare(kind)
    match kind, step:
        case inspect.VarTupleType(item_type=item), int():
            return item
        case inspect.TupleType(item_types=items), int(place) if place < len(items):
            return items[place]
        case inspect.NamedTupleType(fields=fields), int(place) if place < len(fields):
            return fields[place].type
        case inspect.StructType(fields=fields), str():
            return next((field.type for field in fields if field.name == step), None)
    return None


def _bare(kind: inspect.Type) -> inspect.Type:
    """A kind without what is said of it, or nil in its place."""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        kind = kind.type if isinstance(kind, inspect.Metadata) else _other_than_nil(kind)
    return kind


def _other_than_nil(kind: inspect.UnionType) -> inspect.Type:
    return next(each for each in kind.types if not isinstance(each, inspect.NoneType))


def _said(kind: inspect.Type) -> str:
    """What belongs where a kind is declared."""
    if isinstance(kind, inspect.UnionType):
        return _said(_other_than_nil(kind))
    if isinstance(kind, inspect.Metadata):
        return str((kind.extra_json_schema or {}).get("description") or _said(kind.type))
    return _SAID[type(kind)](kind)


_SAID: dict[type[inspect.Type], Callable[[Any], str]] = {
    inspect.IntType: lambda kind: f"a whole number from {kind.ge} to {kind.le}",
    inspect.StrType: lambda kind: f"a text of up to {kind.max_length} characters",
    inspect.MemoryViewType: lambda _: "binary data",
    inspect.EnumType: lambda kind: f"one of {', '.join(choice.value for choice in kind.cls)}",
    inspect.LiteralType: lambda kind: f"one of {', '.join(map(str, kind.values))}",
    inspect.VarTupleType: lambda kind: f"a list of up to {kind.max_length}",
    inspect.NamedTupleType: lambda kind: f"[{', '.join(field.name for field in kind.fields)}]",
    inspect.StructType: lambda _: "a map",
}
