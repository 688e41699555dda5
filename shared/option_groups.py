"""Command-line help with the options in groups."""

from collections.abc import Mapping, Sequence
from typing import Any

import click


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings instead of in one long list.

    Usage: `@click.command(cls=GroupedCommand, option_groups={"Source": ("topics", "frames")})`.
    """

    def __init__(self, *args: Any, option_groups: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        """`option_groups`: names of parameters by heading, in the order of the help.

        Options in no group come first, under "Options".
        """
        super().__init__(*args, **kwargs)
        self._option_groups = option_groups
        unknown = {name for names in option_groups.values() for name in names} - {param.name for param in self.params}
        assert not unknown, f"no such options: {unknown}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Command."""
        rows = {param.name: row for param in self.get_params(ctx) if (row := param.get_help_record(ctx))}
        groups = {
            heading: [rows.pop(name) for name in names if name in rows]
            for heading, names in self._option_groups.items()
        }
        for heading, group in {"Options": list(rows.values()), **groups}.items():
            if group:
                with formatter.section(heading):
                    formatter.write_dl(group)
