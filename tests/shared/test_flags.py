"""Command-line options: their groups in the help, and the options of configuration keys."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import Field

from shared.config import OneOf, Section, parsed_by
from shared.flags import GroupedCommand, key_option, option_group, override
from shared.network.endpoint import Endpoint


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


class Settings(Section):
    """A section with a key of each kind."""

    size: int = Field(default=4, ge=1, le=9)
    pause_s: float | None = Field(default=None, gt=0)
    shape: Annotated[str, OneOf("shape", {"round": 1, "square": 2})] = "round"
    edges: tuple[Annotated[str, OneOf("edge", ("sharp", "soft"))], ...] = ()
    layout: Literal["wide", "tall"] | None = None
    retry: bool = True
    loop: bool = False
    endpoint: Annotated[str, parsed_by(lambda text: str(Endpoint.parse(text)))] | None = None


_option = partial(key_option, Settings)


@click.command()
@_option("--size", text="Size.")
@_option("--pause", "pause_s", text="Pause.", default="none")
@_option("--shape", text="Shape.")
@_option("--edge", "edges", text="Edges.")
@_option("--layout", text="Layout.")
@_option("--retry/--no-retry", text="Retry.")
@_option("-l", "--loop", text="Loop.")
@_option("--endpoint", text="Endpoint.")
def settings(**flags: Any) -> None:
    """Prints the keys that flags change."""
    click.echo(override(Settings(), flags).model_dump(exclude_defaults=True))


def test_options_of_keys_have_the_types_ranges_choices_and_defaults_of_the_fields() -> None:
    """Each is written once, in the section."""
    lines = [" ".join(line.split()) for line in CliRunner().invoke(settings, ["--help"]).output.splitlines()]
    for line in (
        "--size INTEGER RANGE Size. [4] [1<=x<=9]",
        "--pause FLOAT RANGE Pause. [none] [x>0]",
        "--shape [round|square] Shape. [round]",
        "--edge [sharp|soft] Edges.",
        "--layout [wide|tall] Layout.",
        "--retry / --no-retry Retry. [on]",
        "-l, --loop Loop.",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        ((), {}),
        (("--edge", "soft", "--edge", "sharp"), {"edges": ("soft", "sharp")}),
        (("--no-retry", "-l"), {"retry": False, "loop": True}),
        (("--pause", "2", "--endpoint", "[::1]:80"), {"pause_s": 2.0, "endpoint": "[::1]:80"}),
    ],
)
def test_only_given_flags_change_the_section(flags: Sequence[str], changed: dict[str, Any]) -> None:
    """The values of a file must not be replaced by defaults."""
    assert CliRunner().invoke(settings, flags).output == f"{changed}\n"


def test_an_invalid_flag_is_named_with_its_problem() -> None:
    """A `SkylaneError` of a parser and a name that no table has become usage errors."""
    assert "--endpoint: " in CliRunner().invoke(settings, ["--endpoint", "nowhere"]).output
    with pytest.raises(click.UsageError, match="shape: no shape 'rond': did you mean round"):
        override(Settings(), {"shape": "rond"})
