"""Requirements on every command: help, usage errors and ranges of numbers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath

import click
import pytest
from click.testing import CliRunner

from shared.flags import SHOWS_ALL, FiniteRange, WholeRange
from skylane.cli import skylane

Path = tuple[str, ...]
ROOT = FilePath(__file__).parents[1]


def walk(command: click.Command, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    """Yields a command and all its subcommands, each with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from walk(subcommand, (*path, name))


COMMANDS = dict(walk(skylane))


def invoke(*arguments: str) -> tuple[int, str]:
    """Runs a command line; returns its exit code and output."""
    result = CliRunner().invoke(skylane, arguments)
    return result.exit_code, result.output


def test_the_walk_reaches_nested_commands() -> None:
    """Otherwise the tests below would skip them."""
    assert {("edge", "play"), ("cloud", "control"), ("broker", "certs"), ("model", "build"), ("link",)} <= {*COMMANDS}


@pytest.fixture(scope="module")
def help_pages() -> dict[str, list[list[object]]]:
    """Returns exit code and output of `-h` and `--help` of every command, from a new process.

    click caches the help flags of a command at its first call, and other tests call commands without their group.
    """
    program = (
        "import json; from tests.test_commands import COMMANDS, invoke; "
        "print(json.dumps({' '.join(path): [invoke(*path, '-h'), invoke(*path, '--help')] for path in COMMANDS}))"
    )
    terminal = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=terminal, capture_output=True, text=True, check=True
    )
    pages: dict[str, list[list[object]]] = json.loads(done.stdout)
    return pages


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_takes_h_for_help(help_pages: dict[str, list[list[object]]], path: Path) -> None:
    """`-h` and `--help` print the same text at every level."""
    short, long = help_pages[" ".join(path)]
    code, page = short
    assert code == 0
    assert str(page).startswith("Usage: ")
    assert long == short


@pytest.mark.parametrize(
    "path", [path for path, command in COMMANDS.items() if isinstance(command, click.Group)], ids=" ".join
)
def test_the_help_of_a_group_has_a_line_for_every_command(
    help_pages: dict[str, list[list[object]]], path: Path
) -> None:
    """In a terminal of 80 columns, no description is cut, which click shows as "...", or goes on in a second line."""
    lines = str(help_pages[" ".join(path)][0][1]).partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == [each[-1] for each in COMMANDS if each[:-1] == path and each]
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_shows_at_most_25_options(help_pages: dict[str, list[list[object]]], path: Path) -> None:
    """What people use on a day; `--help-all` shows the others too."""
    shown = [line for line in str(help_pages[" ".join(path)][0][1]).splitlines() if line.startswith("  -")]
    assert len(shown) <= 25
    if any("--help-all" in option.opts for option in COMMANDS[path].params):
        page = invoke(*path, "--help-all")[1]
        assert all(
            f"{option.opts[0]}" in page
            for option in COMMANDS[path].params
            if not getattr(option, "hidden", False) and isinstance(option, click.Option)
        )


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_unknown_flag_is_a_usage_error(path: Path) -> None:
    """The exit code 2 distinguishes a wrong call from a failed one."""
    code, printed = invoke(*path, "--no-such-flag")
    assert code == 2
    assert printed.startswith("Usage: ")
    assert "--no-such-flag" in printed


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_shows_the_range_of_every_number(path: Path) -> None:
    """Users must not have to find it out by trying."""
    command = COMMANDS[path]
    context = click.Context(command)
    context.meta[SHOWS_ALL] = True
    for option in command.params:
        if not isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
            continue
        assert isinstance(option.type, (WholeRange, FiniteRange)), f"{option.opts} has no range of shared.flags"
        assert (option.type.min, option.type.max) != (None, None), f"{option.opts} has no range"
        assert option.type._describe_range() in command.get_help(context).replace("\n", "")


_WITH_TOPIC = [path for path, command in walk(skylane) if any("--topic" in each.opts for each in command.params)]


@pytest.mark.parametrize("path", _WITH_TOPIC, ids=" ".join)
def test_a_topic_is_chosen_by_one_flag_in_every_command(path: Path) -> None:
    """An entry of a script for one command is valid for the others."""
    assert {"edge play", "batch", "bag crop", "bag extract"} <= {" ".join(each) for each in _WITH_TOPIC}
    code, output = invoke(*path, "--topic")
    assert code == 2
    assert "Option '--topic' requires an argument" in output


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_number_that_is_not_finite_is_a_usage_error(path: Path) -> None:
    """click's own ranges accept `nan`; `bag make --rate inf` would never end."""
    for option in COMMANDS[path].params:
        if isinstance(option.type, click.FloatRange):
            for value in ("nan", "inf"):
                with pytest.raises(click.BadParameter):
                    option.type(value, option)


def test_an_output_that_cannot_be_written_is_one_line() -> None:
    """Such as a redirection to a full disk."""
    with FilePath("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "skylane", "model", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "skylane: the output cannot be written: No space left on device; make room, or choose another disk\n"
    )
