"""The switch `-q`, which every command has: it prints results, warnings and errors, but no progress."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

_KEY = f"{__name__}.is_quiet"  # A key of the `meta` of a click context, which all contexts of a command line share.
_NAME = "quiet"


def with_switch(command: click.Command) -> click.Command:
    """Adds `-q` to a command, and to the commands of a group; once only."""
    if not any(each.name == _NAME for each in command.params):
        command.params.append(
            click.Option(
                ["-q", f"--{_NAME}"],
                is_flag=True,
                expose_value=False,
                callback=_set,
                help="Print results, warnings and errors only.",
            )
        )
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        with_switch(each)
    return command


def is_quiet() -> bool:
    """Returns whether the running command line has `-q`; False in other threads and without a command line."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_KEY))


def progress_console() -> "Console":
    """Returns the console for progress: standard error; with `-q`, one that prints nothing."""
    from rich.console import Console  # noqa: PLC0415 (keeps `skylane --help` fast)

    return Console(stderr=True, quiet=is_quiet())


def _set(context: click.Context, _: click.Parameter, value: Any) -> None:
    if value:
        context.meta[_KEY] = True
