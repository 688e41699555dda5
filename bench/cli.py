"""`skylane bench`: figures, as ratios measured in one run."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.clocks.cli import clocks
from bench.engines.cli import engines
from bench.engines.tensorflow_cli import tensorflow
from bench.faults.cli import faults
from bench.harness.output import machine_line
from bench.harness.sample_bag import sample_bag
from bench.harness.samples import spread_table
from bench.link.cli import link
from bench.load import playback as overhead_bench
from bench.performance import vehicle as vehicle_bench
from bench.performance.gateway import doors
from bench.performance.report_cost import report
from bench.performance.saturation import saturation
from bench.performance.stamping import stamping
from bench.performance.tls import tls
from bench.performance.transports import transports
from bench.resilience.failover import failover
from bench.resilience.model_swap import swap
from bench.resilience.soak_cli import soak
from cloud.models.repository import default_root
from shared.errors import SkylaneError
from shared.runtime.processes import interrupt_on_termination
from shared.terminal_table import Table

_SAMPLE_FRAMES = 40


class CheckoutNeededError(SkylaneError):
    """A bench that is not part of the wheel was asked for."""

    def __init__(self, bench: str) -> None:
        super().__init__(
            f"'skylane bench {bench}' needs a checkout of the repository, which has the systems it compares with: "
            f"run it there, after 'make dev'"
        )


@click.group()
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure what offloading costs, as ratios to bare inference."""
    context.with_resource(interrupt_on_termination())  # What a bench has started must not outlive it.


def _from_checkout(name: str, summary: str) -> click.Command:
    """The command of a package that the wheel leaves out; where it is missing, one that reports that."""
    try:
        command: click.Command = getattr(import_module(f"bench.{name}.cli"), name)
    except ModuleNotFoundError as error:
        if error.name != f"bench.{name}":
            raise

        @click.command(name, help=summary, context_settings={"ignore_unknown_options": True})
        @click.argument("arguments", nargs=-1)
        def command(arguments: tuple[str, ...]) -> None:  # noqa: ARG001  They are those of the missing command.
            raise CheckoutNeededError(name)

    return command


bench.add_command(_from_checkout("baselines", "Compare with the original systems; needs a checkout of the repository."))
bench.add_command(_from_checkout("peers", "Compare with other serving systems; needs a checkout of the repository."))
bench.add_command(clocks)
bench.add_command(doors)
bench.add_command(engines)
bench.add_command(failover)
bench.add_command(faults)
bench.add_command(link)
bench.add_command(report)
bench.add_command(saturation)
bench.add_command(soak)
bench.add_command(stamping)
bench.add_command(swap)
bench.add_command(tensorflow)
bench.add_command(tls)
bench.add_command(transports)


@bench.command()
@click.option("--bag", type=click.Path(exists=True, path_type=Path), help="Frames to send. [a synthetic drive]")
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--codec", type=click.Choice(["raw", "jpeg", "png", "lz4", "zstd"]), default="jpeg", show_default=True)
@click.option("--quality", type=click.IntRange(1, 100), default=85, show_default=True, help="Of JPEG.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--frames", type=click.IntRange(4, 10_000), default=20, show_default=True, help="A round.")
@click.option("--window", type=click.IntRange(1, 64), default=4, show_default=True, help="Of the throughput rounds.")
@click.option("--device", default="auto", show_default=True)
@click.option("--broker", "broker_kind", type=click.Choice(["auto", "mosquitto", "embedded"]), default="auto")
@click.option("--isolate", is_flag=True, help="Measure beside it an engine in a process of its own.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def overhead(bag: Path | None, models: Path | None, *, as_json: bool, **plan: Any) -> None:
    """Compare the whole journey with the bare engine, in alternating rounds of the same frames."""
    console = Console(stderr=True)
    with console.status("preparing") as status:
        result = overhead_bench.measure(
            overhead_bench.Plan(bag=bag or sample_bag(plan["frames"]), models=models or default_root(), **plan),
            status.update,
        )
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


@bench.command()
@click.option("--bag", type=click.Path(exists=True, path_type=Path), help="Frames to send. [a synthetic drive]")
@click.option("--codec", type=click.Choice(["raw", "jpeg", "png", "lz4", "zstd"]), default="jpeg", show_default=True)
@click.option("--frames", type=click.IntRange(50, 1_000_000), default=2000, show_default=True)
@click.option("--height", type=click.IntRange(16, 8192), default=608, show_default=True, help="Of the model's input.")
@click.option("--width", type=click.IntRange(16, 8192), default=968, show_default=True, help="Of the model's input.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def vehicle(bag: Path | None, *, as_json: bool, **how: Any) -> None:
    """Measure what a frame costs the vehicle, and its memory over many frames, with a worker that answers at once."""
    console = Console(stderr=True)
    with console.status("preparing") as status:
        result = vehicle_bench.measure(bag or sample_bag(_SAMPLE_FRAMES), on_step=status.update, **how)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print_vehicle(result, Console())


def _print_vehicle(result: Mapping[str, Any], console: Console) -> None:
    rows = {"vehicle: read to encoded": result["vehicle_ms"], **result["parts_ms"]}
    console.print(spread_table("Milliseconds", {**rows, "whole journey, no inference": result["journey_ms"]}))
    memory = result["memory_mb"]
    console.print(
        f"{result['frames']} frames as {result['codec']}; resident memory {memory['median']:.0f} MB, peak "
        f"{memory['peak']:.0f} MB, slope {memory['slope_per_1000_frames']:+.2f} MB per 1000 frames",
        highlight=False,
    )
    _print_machine(result, console)


def _print(result: Mapping[str, Any], console: Console) -> None:
    spread = result["spread"]
    ratios = Table(title=f"{result['model']}, {result['codec']}, {result['samples']['rounds']} alternating rounds")
    for heading in ("figure", "value", "by round, least to most", "from"):
        ratios.add_column(heading)
    for way, figures in (("", result), (", isolated", result.get("isolated"))):
        if figures is None:
            continue
        samples = figures["samples"]
        for name, source in (
            ("overhead_ratio", f"{samples['remote']} frames, {samples['bare']} bare"),
            ("throughput_ratio", f"window {result['window']}"),
        ):
            rounds = figures["spread"][f"{name}_by_round"]
            ratios.add_row(f"{name}{way}", f"{figures[name]:.3f}", f"{min(rounds):.3f} to {max(rounds):.3f}", source)
    console.print(ratios)
    totals = {
        "whole journey": spread["remote_ms"],
        "bare inference": spread["bare_ms"],
        "journey without inference": result["overhead_ms"],
        "vehicle: read to encoded": result["vehicle_ms"],
    }
    console.print(spread_table("Milliseconds", {**totals, **result["breakdown_ms"]}))
    _print_machine(result, console)
    console.print(result["engine"], highlight=False)


def _print_machine(result: Mapping[str, Any], console: Console) -> None:
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)
