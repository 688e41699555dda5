"""`skylane bench engines`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench import engines as engines_bench
from bench.machine_line import machine_line
from bench.overhead import Plan
from bench.sample import sample_bag
from cloud.repository import default_root


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
    headings = ("engine", "bare ms", "journey ms", "times faster: bare", "journey", f"window {result['window']}")
    for heading in (*headings, "labels as TensorFlow's", "mean IoU"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    ious = result["mean_iou"] or {}
    for name, figures in result["engines"].items():
        faster = figures["times_faster"]
        table.add_row(
            name,
            f"{figures['bare_ms']['median']:.1f}",
            f"{figures['journey_ms']['median']:.1f}",
            *(_told(faster[kind]) for kind in ("bare", "journey", "throughput")),
            f"{figures['agreement']:.3%}",
            f"{ious[name]:.4f}" if name in ious else "unknown",
        )
    console.print(table)
    for name, reason in result["skipped"].items():
        console.print(f"{name} left out: {reason}", highlight=False)
    console.print(machine_line(result["machine"]), highlight=False)


def _told(ratio: Mapping[str, Any]) -> str:
    rounds = ratio["by_round"]
    return f"{ratio['median']:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"
