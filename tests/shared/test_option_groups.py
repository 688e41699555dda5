"""Command-line help with the options in groups."""

import click
import pytest
from click.testing import CliRunner

from shared.option_groups import GroupedCommand


def test_help_lists_options_under_their_headings_in_the_given_order() -> None:
    """The order of the groups counts, not that of the decorators; other options come first."""

    @click.command(cls=GroupedCommand, option_groups={"Second": ("b",), "First": ("c", "a")})
    @click.option("--a")
    @click.option("--b", help="A letter.")
    @click.option("--c")
    @click.option("--d")
    def command(**_: str) -> None:
        pass

    lines = [line.strip() for line in CliRunner().invoke(command, ["--help"]).output.splitlines()]
    listed = [line.split()[0] for line in lines if line.startswith("--") or line.endswith(":")]
    assert listed == ["Options:", "--d", "--help", "Second:", "--b", "First:", "--c", "--a"]
    assert "--b TEXT  A letter." in lines


def test_a_group_must_name_existing_options() -> None:
    """A renamed option must not silently move out of its group."""
    with pytest.raises(AssertionError, match="wrong"):
        GroupedCommand("command", option_groups={"Group": ("wrong",)})
