"""Command-line flags: parameter types that validate, and flags that override a configuration section."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic.types import PathType

from shared.config import OneOf, describe_problem, dotted
from shared.errors import SkylaneError
from shared.messages.msgpack_reader import VERSION_NAME, VERSION_RULE
from shared.messages.topics import validate_name

M = TypeVar("M", bound=BaseModel)
Command = TypeVar("Command", bound=Callable[..., Any])

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class ValidatedText(click.ParamType):  # type: ignore[type-arg]  # Generic only in the newest click.
    """Text that `check` accepts, passed on unchanged."""

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        """`name` is the placeholder in the help text. `check` raises a `SkylaneError` for an invalid value."""
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ParamType."""
        try:
            self._check(value)
        except SkylaneError as error:
            self.fail(str(error), param, ctx)
        return value


class FiniteRange(click.FloatRange):
    """A range of floating-point numbers without `nan` and `inf`, which click's own type accepts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ParamType."""
        return _number_in(self, float, "number", value, param, ctx)


class WholeRange(click.IntRange):
    """A range of whole numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ParamType."""
        return _number_in(self, int, "whole number", value, param, ctx)


class NumberOrWord(click.ParamType):  # type: ignore[type-arg]  # Generic only in the newest click.
    """A finite number, or one of some words, such as "auto"."""

    name = "number"

    def __init__(self, words: Collection[str]) -> None:
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ParamType."""
        try:
            return value if value in self._words else FiniteRange().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message}, or {' or '.join(self._words)}", param, ctx)


def topic_name(kind: str) -> ValidatedText:
    """Returns the type of a flag for the name of a vehicle, worker, model or operator."""
    return ValidatedText("NAME", partial(validate_name, kind))


def check_version(_: click.Context, __: click.Parameter, version: str | None) -> str | None:
    """Validates a model version; a click callback.

    Raises:
        click.BadParameter: the text is not a valid version name.
    """
    if version is not None and not re.match(VERSION_NAME, version):
        raise click.BadParameter(f"{version[:80]!r}: use {VERSION_RULE}")
    return version


SHOWS_ALL = f"{__name__}.shows_all"  # A key of the `meta` of a click context.


class KeyOption(click.Option):
    """An option that a `GroupedCommand` lists under a heading of its help."""

    def __init__(self, *arguments: Any, heading: str = "Options", **attributes: Any) -> None:
        self.heading = heading
        super().__init__(*arguments, **attributes)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """See click.Option; names the environment variable if the value is from there."""
        return f"'{self.envvar}'" if _is_from_environment(self, ctx) else super().get_error_hint(ctx)


def key_options(section: type[BaseModel], heading: str, *keys: str) -> Callable[[Command], Command]:
    """Returns a decorator that adds the options of configuration keys, listed under `heading` in the help.

    Type, range, choices, default and help text are those of the key's field, which `shared.config.setting` declares. The
    options have no default of their own, so that `override` knows which were given. A key of type `bool` makes a
    switch, a tuple a repeatable option.
    """

    def decorate(command: Command) -> Command:
        for key in reversed(keys):
            command = _key_option(section, key, heading)(command)
        return command

    return decorate


def number(section: type[BaseModel], key: str) -> "click.ParamType[Any]":
    """Returns the type of a flag for a numeric key, with the range of the section's field."""
    field = section.model_fields[key]
    limits = {
        name: getattr(constraint, name)
        for constraint in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(constraint, name)
    }
    return (WholeRange if int in _parts(field) else FiniteRange)(
        min=limits.get("ge", limits.get("gt")),
        max=limits.get("le", limits.get("lt")),
        min_open="gt" in limits,
        max_open="lt" in limits,
    )


def override(section: M, flags: Mapping[str, Any]) -> M:
    """Returns the section with its keys overridden by flags; None or an empty tuple means that a flag was not given.

    Raises:
        click.UsageError: a value is not valid. The message names the flag, or the key if the value is from the section.
    """
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    try:
        return type(section).model_validate(section.model_dump(exclude_unset=True) | given)
    except ValidationError as error:
        flag_names = _flag_names(given)
        from_file = section.model_fields_set - given.keys()

        def rename(key: str) -> str:
            field = key.partition(".")[0]  # A key of a list ends in an index.
            return key if field in from_file else flag_names.get(field, key)

        first = error.errors(include_url=False)[0]
        key, problem = rename(dotted(first["loc"])), describe_problem(first, type(section), rename)
        raise click.UsageError(f"{key}: {problem}" if key else problem) from error


class GroupedCommand(click.Command):
    """A command whose help lists the options under their headings; options without a heading come first."""

    def __init__(
        self, *arguments: Any, daily: Collection[str] = (), keys: Collection[str] = (), **attributes: Any
    ) -> None:
        """Creates the command.

        `daily`: the options that people use on a day, which are all that `--help` shows; empty: it shows all. `keys`: the
        keys of the command's configuration file, some of which have no option.
        """
        super().__init__(*arguments, **attributes)
        self._daily = frozenset(daily)
        self._keys = frozenset(keys)
        if daily:
            show_all = click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show all options.",
            )
            self.params.append(show_all)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = error.option_name.removeprefix("--").replace("-", "_")
            if key not in self._keys:
                raise
            problem = f"{error.option_name} is no option: write the key `{key}` into a file, and give it with --config"
            raise click.UsageError(problem, ctx) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Command."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        shows_all = not self._daily or ctx.meta.get(SHOWS_ALL)
        for param in self.get_params(ctx):
            if not isinstance(param, click.Option) or (row := param.get_help_record(ctx)) is None:
                continue
            if shows_all or self._daily.intersection((*param.opts, *param.secondary_opts)):
                sections.setdefault(getattr(param, "heading", "Options"), []).append(row)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def _show_all(ctx: click.Context, _: click.Parameter, value: Any) -> None:
    if value:
        ctx.meta[SHOWS_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _number_in(kind: Any, parse: type[float], noun: str, value: Any, *context: Any) -> float:
    """Returns a number in the range `kind`; the error for any other value names the valid ones."""
    text = str(value)[:40]
    try:
        number = parse(value)
    except ValueError:
        problem = f"{text!r} is not a {noun}"
    else:
        if not -math.inf < number < math.inf:
            problem = f"{text} is not a finite number"
        elif kind.min is not None and (number < kind.min or (kind.min_open and number == kind.min)):
            problem = f"{text} is too small"
        elif kind.max is not None and (number > kind.max or (kind.max_open and number == kind.max)):
            problem = f"{text} is too large"
        else:
            return number
    least, most = ("" if bound is None else str(bound).removesuffix(".0") for bound in (kind.min, kind.max))
    limits = [least and f"{'above' if kind.min_open else 'of at least'} {least}"]
    limits += [most and f"{'below' if kind.max_open else 'at most' if least else 'of at most'} {most}"]
    words = " and ".join(filter(None, limits)) or "such as 2.5"
    if least and most and not kind.min_open and not kind.max_open:
        words = f"from {least} to {most}"
    return kind.fail(f"{problem}: give a {noun} {words}", *context)  # type: ignore[no-any-return]


def _is_from_environment(option: click.Option, ctx: click.Context | None) -> bool:
    return ctx is not None and ctx.get_parameter_source(str(option.name)) is click.core.ParameterSource.ENVIRONMENT


def _flag_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns by key the flags, or variables, that set it; for a switch set to False, the flag's negative form."""
    context = click.get_current_context(silent=True)
    options = [each for each in context.command.params if isinstance(each, click.Option)] if context else []
    return {
        option.name: str(option.envvar)
        if _is_from_environment(option, context)
        else max(
            option.secondary_opts if option.secondary_opts and given.get(option.name) is False else option.opts,
            key=len,
        )
        for option in options
        if option.name is not None
    }


def _key_option(section: type[BaseModel], key: str, heading: str) -> Callable[[Command], Command]:
    field = section.model_fields[key]
    declared = cast("dict[str, Any]", field.json_schema_extra)
    names = declared["flags"] or [f"--{key.replace('_', '-')}"]
    attributes = {name: declared[name] for name in ("metavar", "envvar")}
    if field.annotation is bool:
        default = ("off", "on")[field.default] if "/" in names[-1] else ""
        attributes |= {"is_flag": True, "default": None}
    else:
        default = _shown(field.default)
        attributes |= {"type": _flag_type(section, key), "multiple": tuple in _parts(field)}
    default = declared["shown"] or default
    text = f"{field.description} [{default}]" if default else field.description
    return click.option(*names, key, cls=KeyOption, heading=heading, help=text, **attributes)


def _flag_type(section: type[BaseModel], key: str) -> "click.ParamType[Any] | None":
    """Returns the type of the flag of a key: a choice, a number with its range, a path, or None for text."""
    parts = _parts(section.model_fields[key])
    for part in parts:
        if isinstance(part, OneOf):
            return click.Choice([*part.names])
        if get_origin(part) is Literal:
            return click.Choice(get_args(part))
        if isinstance(part, type) and issubclass(part, StrEnum):
            return click.Choice([*map(str, part)])
        if part in (int, float):
            words = [word for other in parts if get_origin(other) is Literal for word in get_args(other)]
            return NumberOrWord(words) if words else number(section, key)
        if isinstance(part, PathType):
            return EXISTING_FILE if part.path_type == "file" else EXISTING_FOLDER
    return click.Path(path_type=Path) if Path in parts else None


def _parts(field: FieldInfo) -> list[Any]:
    """Returns the types that the annotation of a field consists of, and their metadata."""

    def walk(annotation: Any) -> Iterator[Any]:
        if get_origin(annotation) in (None, Literal):
            yield annotation
            return
        yield get_origin(annotation)
        for argument in get_args(annotation):
            yield from walk(argument)

    return [*walk(field.annotation), *field.metadata]


def _shown(default: Any) -> str:
    """Returns a default as the help shows it; empty without a default."""
    if default is None or default == ():
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)
