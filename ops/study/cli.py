"""`skylane study`: runs a study from its file, and lists axes and scenarios."""

import sys
from pathlib import Path

import click
from rich.console import Console

from analysis.study.axes import AXES, Axes, known_values
from analysis.study.scenarios import SCENARIOS
from analysis.study.study_plan import model_names
from shared.errors import UnknownNameError
from shared.flags import WholeRange
from shared.models.repository import default_root
from shared.package_data import shipped
from shared.terminal_table import Table

_models = click.option(
    "--models", type=click.Path(file_okay=False, path_type=Path), help="Model repository. [your own]"
)


@click.group()
def study() -> None:
    """Run studies: all combinations of models, engines, codecs, loads and links, several times, into one table."""


@study.command("list")
@_models
def list_axes(models: Path | None) -> None:
    """List the axes of a study with their valid values, and the scenarios."""
    console = Console()
    axes = Table("axis", "default", "valid values", title="Axes: each takes a value or a list")
    defaults, known = Axes(), known_values(model_names(models or default_root()))
    for axis in AXES:
        default = getattr(defaults, axis)[0]
        axes.add_row(axis, "" if default is None else str(getattr(default, "name", default)), known[axis])
    console.print(axes)
    scenarios = Table("scenario", "description", "result", title="Scenarios")
    for name, scenario in SCENARIOS.items():
        scenarios.add_row(name, scenario.help, scenario.metric)
    console.print(scenarios)


@study.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the study. [runs/studies/<name>]"
)
@click.option(
    "--seed", type=WholeRange(min=0, max=(1 << 63) - 1), help="Seed of the run order and the arrivals. [random]"
)
@click.option("--dry-run", is_flag=True, help="Show the runs in their order without running them.")
@_models
def run(file: Path, out: Path | None, seed: int | None, models: Path | None, *, dry_run: bool) -> None:
    """Run or resume the study of FILE; write its tables and report.

    FILE is a YAML file, or the name of an included study, such as `quick`.
    """
    from ops.study.study_run import run_study  # Importing pandas is slow, and `list` does not need it.

    sys.exit(run_study(_study_file(file), models or default_root(), out, seed, dry_run=dry_run))


def _study_file(given: Path) -> Path:
    """Returns the given file, or the included study of that name if the file does not exist."""
    if len(given.parts) != 1 or given.exists():
        return given
    included = {path.stem: path for path in (shipped("configs") / "studies").glob("*.yaml")}
    if given.name not in included:
        raise UnknownNameError("file or included study", given.name, included)
    return included[given.name]
