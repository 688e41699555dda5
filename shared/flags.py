"""Command-line flags: parameter types that validate, and flags that override a configuration section."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from shared.config import OneOf, describe_problem, dotted
from shared.encoding.field_types import VERSION_NAME
from shared.errors import SkylaneError
from shared.messages.topics import validate_name

M = TypeVar("M", bound=BaseModel)
Command = TypeVar("Command", bound=Callable[..., Any])

EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_HEADINGS = "__option_headings__"
_RENAMED = f"{__name__}.renamed"  # Key of a context's `meta` for the values of renamed flags.


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
        converted = super().convert(value, param, ctx)
        if not math.isfinite(converted):
            self.fail(f"{converted} is not a finite number", param, ctx)
        return converted


def topic_name(kind: str) -> ValidatedText:
    """Returns the type of a flag for the name of a vehicle, worker, model or operator."""
    return ValidatedText("NAME", partial(validate_name, kind))


def check_version(_: click.Context, __: click.Parameter, version: str | None) -> str | None:
    """Validates a model version; a click callback.

    Raises:
        click.BadParameter: the text is not a valid version name.
    """
    if version is not None and not re.match(VERSION_NAME, version):
        raise click.BadParameter(f"{version[:80]!r}: use 1 to 64 of A-Z a-z 0-9 _ - . without a leading dot")
    return version


def key_option(
    section: type[BaseModel], *names: str, text: str, default: str = "", **attributes: Any
) -> Callable[[Command], Command]:
    """Returns the option of a configuration key; its type, range, choices and default are those of the key's field.

    The option has no default of its own, so that `override` knows whether it was given. A key of type `bool` makes a
    switch, a tuple a repeatable option.

    Args:
        section: The section of the key.
        names: Flags, and the key if it differs from the longest flag.
        text: The help text.
        default: What the help shows as the default if the field's value says too little, such as "all" for None.
        attributes: Further arguments of `click.option`, such as the `type` of a path.
    """
    key = next((name for name in names if not name.startswith("-")), "")
    key = key or max(names, key=len).partition("/")[0].lstrip("-").replace("-", "_")
    field = section.model_fields[key]
    has_negative_form = any("/" in name for name in names)
    if field.annotation is bool:
        attributes = {"is_flag": True, "default": None, **attributes}
        default = default or (("off", "on")[field.default] if has_negative_form else "")
    else:
        attributes = {"type": _flag_type(section, key), "multiple": tuple in _parts(field), **attributes}
        default = default or _shown(field.default)
    return click.option(*names, help=f"{text} [{default}]" if default else text, **attributes)


def warn_renamed(old: str, new: str) -> None:
    """Warns on standard error that a flag or command has a new name."""
    click.echo(f"warning: {old} is now called {new}, and the next release will refuse it", err=True)


def renamed_option(old: str, new: str, **attributes: Any) -> Callable[[Command], Command]:
    """Returns a hidden option that accepts `old`, the name of the flag `new` in earlier releases, with a warning.

    `override` gets the value under the key of `new`, unless that flag is given as well.
    """

    def redirect(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            warn_renamed(old, new)
            context.meta.setdefault(_RENAMED, {})[new.lstrip("-").replace("-", "_")] = value

    return click.option(old, hidden=True, expose_value=False, callback=redirect, **attributes)


def number(section: type[BaseModel], key: str) -> "click.ParamType[Any]":
    """Returns the type of a flag for a numeric key, with the range of the section's field."""
    field = section.model_fields[key]
    limits = {
        name: getattr(constraint, name)
        for constraint in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(constraint, name)
    }
    return (click.IntRange if int in _parts(field) else FiniteRange)(
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
    if (context := click.get_current_context(silent=True)) is not None:
        given = context.meta.get(_RENAMED, {}) | given
    try:
        return type(section).model_validate(section.model_dump() | given)
    except ValidationError as error:
        flag_names = _flag_names(given)
        from_file = section.model_fields_set - given.keys()

        def rename(key: str) -> str:
            field = key.partition(".")[0]  # A key of a list ends in an index.
            return key if field in from_file else flag_names.get(field, key)

        first = error.errors(include_url=False)[0]
        key, problem = rename(dotted(first["loc"])), describe_problem(first, type(section), rename)
        raise click.UsageError(f"{key}: {problem}" if key else problem) from error


def option_group(heading: str, *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns a decorator that adds options to a `GroupedCommand` and lists them under `heading` in its help.

    `options`: decorators such as `click.option(...)`; one decorator may add several options.
    """

    def decorate(function: Command) -> Command:
        def group() -> None:
            """A command with only the options of the group, to learn their names."""

        headings: dict[str | None, str] = getattr(function, _HEADINGS, {})
        for option in reversed(options):
            function, group = option(function), option(group)
        names = [param.name for param in click.command()(group).params]
        setattr(function, _HEADINGS, dict.fromkeys(names, heading) | headings)
        return function

    return decorate


class GroupedCommand(click.Command):
    """A command whose help lists the options of each `option_group` under a heading, and the others before them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Command."""
        headings: dict[str | None, str] = getattr(self.callback, _HEADINGS, {})
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx)) is not None:
                sections.setdefault(headings.get(param.name, "Options"), []).append(row)
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def _flag_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the flags of the current command by key; for a switch set to False, its negative form."""
    context = click.get_current_context(silent=True)
    options = [each for each in context.command.params if isinstance(each, click.Option)] if context else []
    return {
        option.name: max(
            option.secondary_opts if option.secondary_opts and given.get(option.name) is False else option.opts,
            key=len,
        )
        for option in options
        if option.name is not None
    }


def _flag_type(section: type[BaseModel], key: str) -> "click.ParamType[Any] | None":
    """Returns the type of the flag of a key: a choice, a number with its range, or None for text."""
    for part in _parts(section.model_fields[key]):
        if isinstance(part, OneOf):
            return click.Choice([*part.names])
        if get_origin(part) is Literal:
            return click.Choice(get_args(part))
        if isinstance(part, type) and issubclass(part, StrEnum):
            return click.Choice([*map(str, part)])
        if part in (int, float):
            return number(section, key)
    return None


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
    """Returns a default as the help shows it; empty if there is none."""
    if default is None or default == ():
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)
