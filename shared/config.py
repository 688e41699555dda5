"""Reads YAML configuration files into frozen pydantic models, with error messages that name the key and the problem."""

import os
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from shared.errors import SkylaneError, UnknownNameError, suggestion
from shared.files import open_file
from shared.inference.table import DEVICE_NAME, DEVICE_RULE
from shared.messages.msgpack_reader import VERSION_NAME, VERSION_RULE
from shared.messages.topics import NAME, NAME_RULE
from shared.registry import names_of

MAX_YAML_BYTES = 1 << 20  # Configurations are written by hand; a larger file is a mistake.
MAX_YAML_DEPTH = 32  # Deeper nesting could exhaust the parser's stack.
MAX_YAML_DIGITS = 40  # Characters of one number; a long one takes minutes to parse.
MAX_YAML_NODES = 20_000  # Keys, values, lists and maps; a megabyte can hold 500,000, which take a minute.

_RULES = {f"^{NAME.pattern}$": NAME_RULE, VERSION_NAME: VERSION_RULE, DEVICE_NAME: DEVICE_RULE}  # Rules by pattern.
_PROBLEMS = {  # Keys are pydantic's types of error, whose own messages name types of Python.
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "give a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "give a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "give true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "give a list, such as [a, b]"),
    **dict.fromkeys(("dict_type", "model_type"), "give a map of keys to values"),
    "string_type": "give text, in quotes if it is a number",
    "too_short": "give at least {min_length} of them",
    "greater_than_equal": "give at least {ge}",
    "greater_than": "give a number above {gt}",
    "less_than_equal": "give at most {le}",
    "less_than": "give a number below {lt}",
}
_QUOTED_KEY = re.compile(r"`([a-z_]+)`")  # Keys in a model's messages; flags replace them.
M = TypeVar("M", bound=BaseModel)


class Section(BaseModel):
    """Base class of configuration sections: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def setting(
    default: Any, text: str, *flags: str, shown: str = "", metavar: str = "", envvar: str = "", **limits: Any
) -> Any:
    """Returns the field of a configuration key that `shared.flags.key_options` can make an option of the command line.

    Args:
        default: The default of the key. The option has the same one.
        text: The description of the key, and the help text of the option.
        flags: The names of the option; by default `--` and the key.
        shown: What the help shows as the default if the value says too little, such as "all" for None.
        metavar: The placeholder of the value in the help.
        envvar: An environment variable that also sets the option.
        limits: Limits of the value, such as `ge`; see pydantic's `Field`.
    """
    option: dict[str, Any] = {"flags": [*flags], "shown": shown, "metavar": metavar or None, "envvar": envvar or None}
    return Field(default=default, description=text, json_schema_extra=option, **limits)


def from_environment(section: type[BaseModel]) -> dict[str, str]:
    """Returns the values of the keys that environment variables set, as for the options of the command line."""
    options = ((key, field.json_schema_extra) for key, field in section.model_fields.items())
    variables = {key: str(extra["envvar"]) for key, extra in options if isinstance(extra, dict) and extra.get("envvar")}
    return {key: os.environ[name] for key, name in variables.items() if os.environ.get(name)}


class OneOf:
    """Marks the name of an entry of a table: `codec: Annotated[str, OneOf("codec", IMAGE_CODECS)] = "jpeg"`.

    The name is looked up when the key is validated, and the flag of the key offers the same names.
    """

    def __init__(self, kind: str, table: Collection[str], *others: str) -> None:
        """`kind` is the noun of error messages; `table` may also be a list of names. `others` are valid as well."""
        self._kind = kind
        self._table = table
        self._others = others

    @property
    def names(self) -> tuple[str, ...]:
        """All valid names."""
        return (*self._others, *names_of(self._table))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, name: str) -> str:
        if name not in self._others and name not in self._table:
            raise ValueError(str(UnknownNameError(self._kind, name, self.names)))
        return name


def parsed_by(parse: Callable[[Any], Any]) -> AfterValidator:
    """Returns a validator that replaces a value by `parse(value)`; a SkylaneError of `parse` refuses the value."""

    def validated(value: Any) -> Any:
        try:
            return parse(value)
        except SkylaneError as error:
            raise ValueError(str(error)) from error

    return AfterValidator(validated)


class ConfigError(SkylaneError):
    """A configuration file cannot be used."""

    def __init__(self, path: Path, problem: str, key: str = "") -> None:
        self.path = path
        self.key = key
        self.problem = problem
        super().__init__(f"{path}: {key}: {problem}" if key else f"{path}: {problem}")


def read_yaml(path: Path, model: type[M]) -> M:
    """Reads a YAML file into `model`.

    Raises:
        ConfigError: the file is missing, too large, not YAML, repeats a key or does not fit the model; the message
            names the file, the dotted key and, for an unknown key, the nearest known one.
    """
    return validate(path, load_mapping(path), model)


def load_mapping(path: Path) -> dict[str, Any]:
    """Reads a YAML file whose top level is a map into plain types; an empty file gives an empty map.

    Raises:
        ConfigError: as `load_document`, or the top level is not a map.
    """
    document = load_document(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(path, "is a list or a single value instead of a map of keys to values, such as `key: value`")
    return document


def load_document(path: Path) -> Any:
    """Reads a YAML file into plain types.

    Raises:
        ConfigError: the file is missing, too large, not YAML or repeats a key.
    """
    try:
        with open_file(path) as file:
            text = file.read(MAX_YAML_BYTES + 1)
    except OSError as error:
        raise ConfigError(path, f"cannot be read ({error.strerror}): check the path") from error
    if len(text) > MAX_YAML_BYTES:
        raise ConfigError(path, f"is larger than {MAX_YAML_BYTES} bytes: this is not a configuration file")
    try:
        return yaml.load(text, StrictLoader)  # noqa: S506 - StrictLoader is a SafeLoader that refuses more.
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(path, f"is not valid YAML{where}: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(
            path, f"is not valid YAML: byte {error.position + 1} is not text: save it as UTF-8"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(path, f"is not valid YAML: {' '.join(str(error).split())}") from error


def validate(path: Path, document: Mapping[str, Any], model: type[M]) -> M:
    """Validates a document that was read from `path`.

    Raises:
        ConfigError: names the dotted key and the first problem, and counts the others.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False)
        first = min(details, key=lambda detail: detail["type"] != "extra_forbidden")
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise ConfigError(path, describe_problem(first, model) + more, key=dotted(first["loc"])) from error


def describe_problem(detail: ErrorDetails, model: type[BaseModel], rename: Callable[[str], str] = str) -> str:
    """Returns a readable description of a validation error. `rename` converts keys quoted in the model's message."""
    if detail["type"] == "extra_forbidden":
        parent = _section_at(model, detail["loc"][:-1])
        return "unknown key" + suggestion(str(detail["loc"][-1]), parent.model_fields if parent else ())
    if detail["type"] == "missing":
        return "is missing: add it"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    limits = {key: str(value).removesuffix(".0") for key, value in detail.get("ctx", {}).items()}
    if limits.get("pattern") in _RULES:
        message = f"use {_RULES[limits['pattern']]}"
    elif detail["type"] in _PROBLEMS:
        message = _PROBLEMS[detail["type"]].format_map(limits)
    message = _QUOTED_KEY.sub(lambda found: rename(found[1]), message)
    given = repr(str(detail["input"]) if isinstance(detail["input"], Path) else detail["input"])
    if detail["type"] == "value_error" or isinstance(detail["input"], (dict, list)):
        return message
    return f"{message} (given {given if len(given) <= 60 else given[:57] + '...'})"  # A line's worth.


def dotted(location: tuple[int | str, ...]) -> str:
    """Returns the path of a value in a document, such as `plan.axes.codec`."""
    return ".".join(str(part) for part in location)


def _section_at(model: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Returns the model of the section at `location`; None if no model describes it."""
    current: Any = model
    for part in location:
        candidates = list(_sections(current))
        if isinstance(part, int):
            current = Union[tuple(candidates)] if candidates else None  # noqa: UP007 - built at run time.
            continue
        # Pydantic puts the name of a union's member into the location.
        named = [c for c in candidates if c.__name__ == part]
        fields = [c.model_fields[part].annotation for c in candidates if part in c.model_fields]
        if fields:
            current = fields[0]
        elif named:
            current = named[0]
        elif get_origin(current) is dict:
            current = get_args(current)[1]
        else:
            return None
    return next(iter(_sections(current)), None)


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, list, tuple, Annotated):
        return [section for argument in get_args(annotation) for section in _sections(argument)]
    return []


class StrictLoader(yaml.SafeLoader):
    """A safe YAML loader that refuses repeated keys, aliases, deep nesting and too many nodes."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """See SafeLoader; called for every node before its children."""
        self._refuse(self.check_event(yaml.AliasEvent), "aliases are not supported: write the value out")
        self.depth += 1
        self.nodes += 1
        self._refuse(self.depth > MAX_YAML_DEPTH, f"nested deeper than {MAX_YAML_DEPTH}")
        self._refuse(self.nodes > MAX_YAML_NODES, f"more than {MAX_YAML_NODES} keys and values")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - the parent's signature.
        """See SafeLoader."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is repeated", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Constructs an integer or a float; refuses YAML 1.1's base 60 numbers, such as `1:30`."""
        text = self.construct_scalar(node)
        problem = None
        if ":" in text:
            problem = "YAML reads this as a number in base 60: put it into quotes if it is text"
        elif len(text) > MAX_YAML_DIGITS:
            problem = f"a number of {len(text)} characters: {MAX_YAML_DIGITS} are allowed"
        if problem is not None:
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        is_float = node.tag.endswith("float")
        return self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)

    def _refuse(self, condition: bool, problem: str) -> None:  # noqa: FBT001  Reads as a sentence.
        if condition:
            raise yaml.composer.ComposerError(None, None, problem, self.get_mark())


for _kind in ("int", "float"):
    StrictLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", StrictLoader.construct_number)
