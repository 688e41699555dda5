"""Command-line flags: types that check a value as it is read, and flags that override a configuration section."""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, get_args

import click
from pydantic import BaseModel, ValidationError

from shared.config import dotted, problem_of
from shared.errors import SkylaneError
from shared.messages.model_card import VERSION_NAME
from shared.messages.topics import checked

M = TypeVar("M", bound=BaseModel)


class ValidatedText(click.ParamType):  # type: ignore[type-arg]  # Generic only in the newest click.
    """Text that `check` accepts; it is passed on as it was written."""

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        """`name`: the placeholder in the help. `check` raises a `SkylaneError` for a value that cannot be used."""
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
    """A range of floating-point numbers; click's own lets `nan` through, and `inf` where there is no maximum."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ParamType."""
        converted = super().convert(value, param, ctx)
        if not math.isfinite(converted):
            self.fail(f"{converted} is not a finite number", param, ctx)
        return converted


def topic_name(kind: str) -> ValidatedText:
    """Returns the type of a flag that holds the name of a vehicle, worker, model or operator."""
    return ValidatedText("NAME", partial(checked, kind))


def check_version(_: click.Context, __: click.Parameter, version: str | None) -> str | None:
    """Checks the version of a model; the callback of an option.

    Raises:
        click.BadParameter: no version has such a name.
    """
    if version is not None and not re.match(VERSION_NAME, version):
        raise click.BadParameter(f"{version[:80]!r}: use 1 to 64 of A-Z a-z 0-9 _ - . and no dot in front")
    return version


def number(model: type[BaseModel], key: str) -> "click.ParamType[Any]":
    """Returns the type of a flag for a numeric key of a section: its range is the one of the section's field."""
    field = model.model_fields[key]
    bounds = {
        name: getattr(constraint, name)
        for constraint in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(constraint, name)
    }
    is_whole = int in (field.annotation, *get_args(field.annotation))
    return (click.IntRange if is_whole else FiniteRange)(
        min=bounds.get("ge", bounds.get("gt")),
        max=bounds.get("le", bounds.get("lt")),
        min_open="gt" in bounds,
        max_open="lt" in bounds,
    )


def override(section: M, flags: Mapping[str, Any]) -> M:
    """Returns the section with the flags in place of their keys; a flag that is None or empty was not given.

    Raises:
        click.UsageError: a value does not fit. The message names flags, and keys where the value is the section's own.
    """
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    try:
        return type(section).model_validate(section.model_dump() | given)
    except ValidationError as error:
        flag_names = _flag_names(given)
        from_file = section.model_fields_set - given.keys()

        def shown(key: str) -> str:
            return key if key in from_file else flag_names.get(key, key)

        first = error.errors(include_url=False)[0]
        key, problem = shown(dotted(first["loc"])), problem_of(first, type(section), shown)
        raise click.UsageError(f"{key}: {problem}" if key else problem) from error


def _flag_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Returns the flags of the current command by their keys; a switch that was turned off by its negative name."""
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
