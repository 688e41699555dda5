"""`skylane bench engines`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.engines import engine_comparison as engines_bench
from bench.harness.output import machine_line
from bench.harness.sample_bag import sample_bag
from bench.load.playback import Plan
from cloud.models.repository import default_root
from shared.terminal_table import Table


@click.command()
@click.option("--bag", type=click.Path(exists=True, path_type=Path), help="Frames to send. [a synthetic drive]")
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--frames", type=click.IntRange(4, 10_000), default=15, show_default=True, help="A turn.")
@click.option("--window", type=click.IntRange(1, 64), default=4, show_default=True, help="Of the throughput turns.")
@click.option("--broker", "broker_kind", type=click.Choice(["auto", "mosquitto", "embedded"]), default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def engines(bag: Path | None, models: Path | None, *, as_json: bool, **plan: Any) -> None:
    """Compare OpenVINO in fp32, bf16 and int8 with TensorFlow, bare and end to end, in alternating turns."""
    with Console(stderr=True).status("preparing") as status:
        result = engines_bench.measure(
            Plan(bag=bag or sample_bag(plan["frames"]), models=models or default_root(), **plan), status.update
        )
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    table = Table(title=f"{result['model']}, {result['rounds']} alternating rounds of {result['frames']} frames")
    for heading in ("engine", "bare ms", "journey ms", "labels", "mean IoU"):
        table.add_column(heading, justify="left" if heading == "engine" else "right", no_wrap=True)
    ious = result["mean_iou"] or {}
    for name, figures in result["engines"].items():
        table.add_row(
            name,
            *(f"{figures[kind]['median']:.1f}" for kind in ("bare_ms", "journey_ms")),
            f"{figures['agreement']:.3%}",
            f"{ious[name]:.4f}" if name in ious else "unknown",
        )
    console.print(table)
    _print_ratios(result, console)
    for name, reason in result["skipped"].items():
        console.print(f"{name} left out: {reason}", highlight=False)
    console.print(machine_line(result["machine"]), highlight=False)


def _print_ratios(result: Mapping[str, Any], console: Console) -> None:
    table = Table(title="Times faster than TensorFlow: by the median (by round, least to most)")
    for heading in ("engine", "bare", "journey", f"window {result['window']}"):
        table.add_column(heading, no_wrap=True)
    for name, figures in result["engines"].items():
        ratios = (figures["times_faster"][kind] for kind in ("bare", "journey", "throughput"))
        told = (f"{each['median']:.2f} ({min(each['by_round']):.2f}-{max(each['by_round']):.2f})" for each in ratios)
        table.add_row(name, *told)
    console.print(table)
