"""Command-line options: their groups in the help, and the options of configuration keys."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import FilePath

from shared.config import OneOf, Section, parsed_by, setting
from shared.flags import FiniteRange, GroupedCommand, NumberOrWord, WholeRange, key_options, override
from shared.network.endpoint import Endpoint


class Settings(Section):
    """A section with a key of each kind."""

    size: int = setting(4, "Size.", ge=1, le=9)
    pause_s: float | None = setting(None, "Pause.", "--pause", shown="none", gt=0)
    shape: Annotated[str, OneOf("shape", {"round": 1, "square": 2})] = setting("round", "Shape.")
    edges: tuple[Annotated[str, OneOf("edge", ("sharp", "soft"))], ...] = setting((), "Edges.", "--edge")
    layout: Literal["wide", "tall"] | None = setting(None, "Layout.")
    retry: bool = setting(True, "Retry.", "--retry/--no-retry")
    loop: bool = setting(False, "Loop.", "-l", "--loop")
    endpoint: Annotated[str, parsed_by(lambda text: str(Endpoint.parse(text)))] | None = setting(None, "Endpoint.")
    file: FilePath | None = setting(None, "File.")


@click.command(cls=GroupedCommand)
@key_options(Settings, "Second", "size", "pause_s", "shape")
@key_options(Settings, "First", "edges", "layout", "retry", "loop", "endpoint")
@click.option("--alone", help="Alone.")
@key_options(Settings, "Second", "file")
def settings(alone: str | None, **flags: Any) -> None:
    """Prints the keys that flags change."""
    assert alone is None
    click.echo(override(Settings(), flags).model_dump(exclude_defaults=True))


def test_help_groups_the_options_and_shows_the_ranges_choices_and_defaults_of_the_fields() -> None:
    """Each is written once, in the section."""
    lines = [" ".join(line.split()) for line in CliRunner().invoke(settings, ["--help"]).output.splitlines()]
    listed = [line.split()[0] for line in lines if line.startswith(("-", "First", "Second", "Options"))]
    assert listed == [
        *("Options:", "--alone", "--help", "Second:", "--size", "--pause", "--shape", "--file"),
        *("First:", "--edge", "--layout", "--retry", "-l,", "--endpoint"),
    ]
    for line in (
        "--size INTEGER RANGE Size. [4] [1<=x<=9]",
        "--pause FLOAT RANGE Pause. [none] [x>0]",
        "--shape [round|square] Shape. [round]",
        "--edge [sharp|soft] Edges.",
        "--layout [wide|tall] Layout.",
        "--retry / --no-retry Retry. [on]",
        "-l, --loop Loop.",
        "--file FILE File.",
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


def test_a_key_that_was_not_given_stays_so() -> None:
    """A key that does not go with another one may be refused only if the user has set it."""
    assert override(Settings(size=5), {"retry": False}).model_fields_set == {"size", "retry"}


@pytest.mark.parametrize(
    ("kind", "given", "problem"),
    [
        (FiniteRange(0, 5), "fast", "'fast' is not a number: give a number from 0 to 5"),
        (FiniteRange(0, 5), "nan", "nan is not a finite number: give a number from 0 to 5"),
        (FiniteRange(0.1, 1e6), "1e7", "1e7 is too large: give a number from 0.1 to 1000000"),
        (FiniteRange(0, min_open=True), "0", "0 is too small: give a number above 0"),
        (FiniteRange(0, 1, min_open=True), "0", "0 is too small: give a number above 0 and at most 1"),
        (FiniteRange(), "", "'' is not a number: give a number such as 2.5"),
        (NumberOrWord(("auto",)), "some", "'some' is not a number: give a number such as 2.5, or auto"),
        (WholeRange(1), "x", "'x' is not a whole number: give a whole number of at least 1"),
        (WholeRange(1), "1.5", "'1.5' is not a whole number: give a whole number of at least 1"),
        (WholeRange(1, 9), "0", "0 is too small: give a whole number from 1 to 9"),
        (WholeRange(1, 9), "9" * 400, f"{'9' * 40} is too large: give a whole number from 1 to 9"),
        (WholeRange(0, 9, max_open=True), "9", "9 is too large: give a whole number of at least 0 and below 9"),
        (WholeRange(max=5), "6", "6 is too large: give a whole number of at most 5"),
    ],
)
def test_a_number_option_says_what_is_wrong_and_what_to_give(kind: Any, given: str, problem: str) -> None:
    """A user knows no "integer range"."""

    @click.command()
    @click.option("--rate", type=kind)
    def command(rate: float) -> None:
        click.echo(rate)

    assert CliRunner().invoke(command, ["--rate", "1"]).exit_code == 0
    refused = CliRunner().invoke(command, ["--rate", given])
    assert f"Invalid value for '--rate': {problem}\n" in refused.output


@pytest.mark.parametrize(("flags", "name"), [((), "PLACE"), (("--endpoint", "nowhere"), "--endpoint")])
def test_an_invalid_value_is_attributed_to_the_variable_that_holds_it(flags: Sequence[str], name: str) -> None:
    """The user may have forgotten the variable, and has not given the flag."""

    class Place(Section):
        endpoint: Annotated[str, parsed_by(Endpoint.parse)] | None = setting(None, "Endpoint.", envvar="PLACE")
        file: FilePath | None = setting(None, "File.", envvar="PLACE_FILE")

    @click.command()
    @key_options(Place, "Place", "endpoint", "file")
    def command(**given: Any) -> None:
        override(Place(), given)

    refused = CliRunner().invoke(command, flags, env={"PLACE": "elsewhere"})
    assert f"Error: {name}: '{flags[-1] if flags else 'elsewhere'}': the port is missing" in refused.output
    assert (
        "Invalid value for 'PLACE_FILE': File 'gone'" in CliRunner().invoke(command, env={"PLACE_FILE": "gone"}).output
    )
