"""`skylane bench tensorflow`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.engines import tensorflow_comparison
from bench.engines.tensorflow_variants import AGAIN, WAYS
from bench.harness.output import machine_line
from cloud.models.repository import default_root
from shared.flags import FiniteRange
from shared.terminal_table import Table


@click.command()
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--rounds", type=click.IntRange(1, 1000), default=11, show_default=True)
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), help="These alone. [all]")
@click.option(
    "--limit",
    "limit_s",
    type=FiniteRange(min=1.0),
    default=60.0,
    show_default=True,
    help="Seconds of processor time that a way may take to be warm, and for a picture; then it is given up and named.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def tensorflow(models: Path | None, *, as_json: bool, **plan: Any) -> None:
    """Compare the ways to run a frozen graph in TensorFlow with the one that the engine takes."""
    with Console(stderr=True).status("preparing") as status:
        result = tensorflow_comparison.measure(
            tensorflow_comparison.Plan(models=models or default_root(), **plan), status.update
        )
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    table = Table(
        title=f"{result['model']}: times the engine's, {result['rounds']} rounds in turn",
        caption=f"below 1: faster than the engine; labels: share that is the engine's; {AGAIN}: what chance does",
    )
    for heading in ("way", "median", "least", "processor", "labels"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for name, row in sorted(result["ways"].items(), key=lambda item: float(item[1]["ratio"])):
        ratios = (f"{row[key]:.2f}" for key in ("ratio", "ratio_of_least", "processor_ratio"))
        table.add_row(name, *ratios, f"{row['agreement']:.5%}")
    console.print(table)
    for reason in result["failed"].values():
        console.print(f"left out: {reason}", highlight=False, markup=False)
    console.print(machine_line(result["machine"]), highlight=False)
