"""A group of commands that are imported only when they are called."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bench.cli import bench
from shared.errors import MissingExtraError
from shared.lazy_group import CommandEntry, LazyGroup
from skylane.cli import skylane


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stduy"], "no command 'stduy': did you mean study?"),
        (["qqqq"], "no command 'qqqq': choose one of bag, batch, broker"),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(arguments: list[str], message: str) -> None:
    """The names of the commands are known without importing them."""
    refused = CliRunner().invoke(skylane, arguments)
    assert refused.exit_code == 2
    assert message in refused.output


def test_an_option_of_the_group_is_still_understood() -> None:
    """An unknown option is no unknown command."""
    assert "No such option" in CliRunner().invoke(bench, ["--nonsense"]).output


def test_a_missing_library_is_named_with_the_full_command() -> None:
    """The user learns which extra installs it."""
    group = LazyGroup("tools", entries={"dig": CommandEntry("no_such_library.cli:dig", "edge", "Dig.")})
    assert "Dig." in CliRunner().invoke(group, ["--help"]).output
    refused = CliRunner().invoke(group, ["dig"])
    assert isinstance(refused.exception, MissingExtraError)
    assert "needs no_such_library, which is not installed" in str(refused.exception)


def test_a_library_that_a_command_imports_late_is_named_too() -> None:
    """Slow libraries are imported only when a command runs, and its help works without them."""

    class Group(LazyGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:  # noqa: ARG002
            return click.Command(cmd_name, callback=lambda: import_module("no_such_library"))

    refused = CliRunner().invoke(Group("tools", entries={"dig": CommandEntry("tools:dig", "edge", "Dig.")}), ["dig"])
    assert isinstance(refused.exception, MissingExtraError)
    assert "'tools dig' needs no_such_library, which is not installed" in str(refused.exception)


def test_the_help_of_a_benchmark_imports_no_other_benchmark() -> None:
    """Each of them loads other libraries."""
    statement = (
        "import sys; from click.testing import CliRunner; from bench.cli import bench; "
        "assert CliRunner().invoke(bench, ['tls', '--help']).exit_code == 0; "
        "assert 'bench.tls' in sys.modules; assert 'bench.fleet.fleet_bench' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=Path(__file__).parents[2])
