"""Command-line help with the options in groups."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
_HEADINGS = "__option_headings__"


def option_group(heading: str, *options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns a decorator that adds options to a `GroupedCommand` and lists them under `heading` in its help.

    `options`: decorators such as `click.option(...)`; one decorator may add several options.
    """

    def decorate(function: Command) -> Command:
        for option in reversed(options):
            function = option(function)
        params: list[click.Parameter] = getattr(function, "__click_params__")  # noqa: B009  Untyped in click.
        headings: dict[str | None, str] = getattr(function, _HEADINGS, {})
        setattr(function, _HEADINGS, {param.name: heading for param in params} | headings)
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
