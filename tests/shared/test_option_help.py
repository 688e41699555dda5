"""Command-line help with the options in groups."""

import click
from click.testing import CliRunner

from shared.flags import GroupedCommand, option_group


@click.command(cls=GroupedCommand)
@click.argument("argument")
@click.option("--alone")
@option_group("Second", click.option("--b", help="A letter."), click.option("--a"))
@option_group("First", click.option("--c"))
def command(**values: str) -> None:
    """Prints the values of its options."""
    click.echo(" ".join(f"{name}={value}" for name, value in sorted(values.items())))


def test_help_lists_options_under_their_headings() -> None:
    """Groups and options keep the order of the source; options without a group come first."""
    lines = [line.strip() for line in CliRunner().invoke(command, ["--help"]).output.splitlines()]
    listed = [line.split()[0] for line in lines if line.startswith("--") or line.endswith(":")]
    assert listed == ["Options:", "--alone", "--help", "Second:", "--b", "--a", "First:", "--c"]
    assert "--b TEXT  A letter." in lines


def test_grouped_options_reach_the_command() -> None:
    """The groups affect the help only."""
    result = CliRunner().invoke(command, ["x", "--a", "1", "--c", "3"])
    assert result.output == "a=1 alone=None argument=x b=None c=3\n"
