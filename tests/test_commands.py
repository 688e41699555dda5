"""What holds for every command: its help, its usage errors, and the ranges of its numbers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath

import click
import pytest
from click.testing import CliRunner

from skylane import skylane

Path = tuple[str, ...]
ROOT = FilePath(__file__).parents[1]


def walk(command: click.Command, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    """Yields a command and all below it, each with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk(below, (*path, name))


COMMANDS = dict(walk(skylane))


def ended(*arguments: str) -> tuple[int, str]:
    """Runs a command line; returns its exit code and what it printed."""
    done = CliRunner().invoke(skylane, arguments)
    return done.exit_code, done.output


def test_the_walk_reaches_nested_commands() -> None:
    """Otherwise the tests below would pass without a look at them."""
    assert {("edge", "play"), ("cloud", "control"), ("broker", "certs"), ("model", "build"), ("bench", "link")} <= {
        *COMMANDS
    }


@pytest.fixture(scope="module")
def help_pages() -> dict[str, list[list[object]]]:
    """What `-h` and `--help` of every command end with and print, from a new process.

    click keeps the flags for help with a command once it was called, and other tests call commands without their group.
    """
    program = (
        "import json; from tests.test_commands import COMMANDS, ended; "
        "print(json.dumps({' '.join(path): [ended(*path, '-h'), ended(*path, '--help')] for path in COMMANDS}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    pages: dict[str, list[list[object]]] = json.loads(done.stdout)
    return pages


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_takes_h_for_help(help_pages: dict[str, list[list[object]]], path: Path) -> None:
    """Both spellings, at every level, print the same help."""
    short, long = help_pages[" ".join(path)]
    code, page = short
    assert code == 0
    assert str(page).startswith("Usage: ")
    assert long == short


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_unknown_flag_is_a_usage_error(path: Path) -> None:
    """Exit code 2 and the usage, so that a script can tell a wrong call from a failed one."""
    code, printed = ended(*path, "--no-such-flag")
    assert code == 2
    assert printed.startswith("Usage: ")
    assert "--no-such-flag" in printed


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_shows_the_range_of_every_number(path: Path) -> None:
    """A number without one is found out by trying."""
    command = COMMANDS[path]
    for option in command.params:
        if not isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
            continue
        assert isinstance(option.type, (click.IntRange, click.FloatRange)), f"{option.opts} has no range"
        assert (option.type.min, option.type.max) != (None, None), f"{option.opts} has no range"
        assert option.type._describe_range() in command.get_help(click.Context(command)).replace("\n", "")


def test_the_help_of_inspect_names_every_format_it_reads() -> None:
    """ONNX is one of them."""
    code, printed = ended("model", "inspect", "--help")
    assert code == 0
    assert "ONNX" in printed


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_number_that_is_not_finite_is_a_usage_error(path: Path) -> None:
    """`nan` lies in no range, though no comparison says so; `bag make --rate inf` would never have ended."""
    for option in COMMANDS[path].params:
        if isinstance(option.type, click.FloatRange):
            for value in ("nan", "inf"):
                with pytest.raises(click.BadParameter):
                    option.type(value, option)
