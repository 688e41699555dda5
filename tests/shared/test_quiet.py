"""The switch `-q`, before and after the names of commands."""

import logging
from io import StringIO

import click
import pytest
from click.testing import CliRunner

from shared import quiet
from shared.lazy_group import CommandEntry, LazyGroup
from shared.logs import configure_logging, get_logger
from shared.quiet import is_quiet, progress_console, with_switch
from skylane.cli import COMMANDS, skylane


@pytest.mark.parametrize("arguments", [["-q", "group", "say"], ["group", "-q", "say"], ["group", "say", "--quiet"]])
def test_the_switch_may_stand_at_any_command(arguments: list[str]) -> None:
    """Users remember neither order."""

    @click.group()
    def top() -> None:
        pass

    @top.group()
    def group() -> None:
        pass

    @group.command()
    def say() -> None:
        click.echo(f"quiet: {is_quiet()}")
        progress_console().print("progress")

    with_switch(with_switch(top))  # Twice is once.
    assert CliRunner().invoke(top, arguments).output == "quiet: True\n"
    loud = CliRunner().invoke(top, ["group", "say"])
    assert (loud.stdout, loud.stderr) == ("quiet: False\n", "progress\n")
    assert not is_quiet()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_it(name: str) -> None:
    """Also the commands of groups."""
    context = click.Context(skylane)
    command = skylane.get_command(context, name)
    assert command is not None
    below = [] if not isinstance(command, click.Group) else command.list_commands(context)
    commands = [command]
    if isinstance(command, click.Group):
        commands += [found for each in below if (found := command.get_command(context, each)) is not None]
    assert len(commands) == 1 + len(below)
    for each in commands:
        assert sum(param.name == "quiet" for param in each.params) == 1, each.name


def test_the_log_keeps_its_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """`info` lines are progress; a higher level that the user chose stays."""
    monkeypatch.setattr("sys.stderr", shown := StringIO())
    with click.Context(skylane) as context:
        context.meta[f"{quiet.__name__}.is_quiet"] = True
        for level, expected in (("debug", logging.WARNING), (None, logging.WARNING), ("error", logging.ERROR)):
            configure_logging(level=level)
            assert logging.getLogger("skylane").level == expected
        configure_logging()
        get_logger("test").info("progress")
        get_logger("test").warning("trouble")
    assert "trouble" in shown.getvalue()
    assert "progress" not in shown.getvalue()


def test_a_value_that_looks_like_the_switch_stays_a_value() -> None:
    """It is no text that is cut out of the command line."""

    @click.command()
    @click.argument("word")
    def echo(word: str) -> None:
        click.echo(f"{word} {is_quiet()}")

    assert CliRunner().invoke(with_switch(echo), ["--", "-q"]).output == "-q False\n"
    assert LazyGroup("tools", entries={"dig": CommandEntry("x:y", "", "")}).params == []
