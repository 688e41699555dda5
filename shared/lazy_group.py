"""A click group whose subcommands are imported only when they are called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from shared.quiet import with_switch


class CommandEntry(NamedTuple):
    """The import path of a subcommand, the pip extras that it needs, and its help line."""

    path: str
    extras: str
    help: str


class LazyGroup(click.Group):
    """A click group that imports a subcommand only when it is called."""

    def __init__(self, *args: Any, entries: Mapping[str, CommandEntry], **settings: Any) -> None:
        """`entries`: the subcommands by name."""
        super().__init__(*args, **settings)
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Returns the names in alphabetical order."""
        return sorted(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a subcommand; returns None if there is no such command."""
        if cmd_name not in self._entries:
            return None
        module, _, attribute = self._entries[cmd_name].path.partition(":")
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise self._missing_extra(ctx, cmd_name, error) from error
        return with_switch(command)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a subcommand, which may import some of its libraries only now."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if ctx.invoked_subcommand is None or ctx.invoked_subcommand not in self._entries:
                raise
            raise self._missing_extra(ctx, ctx.invoked_subcommand, error) from error

    def _missing_extra(self, ctx: click.Context, name: str, error: ModuleNotFoundError) -> Exception:
        from shared.errors import MissingExtraError  # noqa: PLC0415 (imported only after a failure)

        return MissingExtraError(f"'{ctx.command_path} {name}'", str(error.name), self._entries[name].extras)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group; the error for an unknown name has the most similar names."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from shared.errors import suggestion  # noqa: PLC0415 (imported only after a failure)

            ctx.fail(f"no command {args[0]!r}{suggestion(args[0], self._entries)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's signature)
        """Writes the help lines from the table, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._entries[name].help) for name in sorted(self._entries)])
