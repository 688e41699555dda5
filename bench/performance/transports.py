"""What each way to the worker costs: one vehicle, one frame in flight, the same frames, model and engine, in turn.

The overhead is a frame's journey without its inference. MQTT goes through a broker, which our gRPC does not: what the
broker alone takes for as many bytes there and a mask back is measured beside it.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console

from bench.harness.comparison import Laps, parts_of
from bench.harness.output import machine_line
from bench.harness.sample_bag import sample_bag
from bench.load import playback
from bench.load.bus_echo import wire
from bench.load.gateway_deployment import ALL_TRANSPORTS, MQTT, GatewayDeployment
from cloud.models.repository import default_root
from shared.runtime.machine import machine
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage
from shared.terminal_table import Table

_OWN_GRPC = "grpc"
_MQTT_TARGET = 1.5  # Times our own gRPC's overhead, with JPEG.
_CROSSING = "crossing"
_VEHICLE = [stage for stage in EDGE_STAGES if stage not in (Stage.DUE, Stage.RETURNED)]
_CLOUD = [stage for stage in CLOUD_STAGES if stage not in (Stage.RECEIVED, Stage.INFERRED)]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how often."""

    bag: Path
    models: Path
    model: str = "road-small"
    engine: str | None = None
    doors: tuple[str, ...] = ALL_TRANSPORTS
    codec: str = "jpeg"
    frames: int = 20  # A round.
    rounds: int = 5


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Run the rounds; `on_step` is told before each. Returns what `--json` holds.

    Raises:
        SkylaneError: the bag, the model, the broker or the worker cannot be used, or a frame was not answered.
    """
    played = playback.Plan(
        bag=plan.bag, models=plan.models, model=plan.model, codec=plan.codec, frames=plan.frames, device="cpu"
    )
    laps = {door: Laps() for door in plan.doors}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))
        on_step("starting a worker with all its doors open")
        site = stack.enter_context(
            GatewayDeployment(models=plan.models, model=plan.model, doors=plan.doors, engine=plan.engine)
        )
        for number in range(plan.rounds):
            for door in plan.doors if number % 2 == 0 else reversed(plan.doors):
                on_step(f"round {number + 1} of {plan.rounds}: {door}")
                rows = site.played(played, door, folder / f"{door}-{number}")
                laps[door].add([parts_of(row) for row in rows])
        figures = {door: each.figures() for door, each in laps.items()}
        on_step("the broker alone")
        broker_ms = _broker_alone(site, figures[MQTT]["parts"]["bytes_up"], plan) if MQTT in figures else None
        return {
            "plan": {key: str(value) if isinstance(value, Path) else value for key, value in asdict(plan).items()},
            "doors": figures,
            "to_own_grpc": {door: each.against(laps[_OWN_GRPC]) for door, each in laps.items() if _OWN_GRPC in laps},
            "broker_alone_ms": broker_ms,
            "broker": site.broker.description,
            "machine": machine(),
        }


def _broker_alone(site: GatewayDeployment, bytes_up: float, plan: Plan) -> float:
    """Median milliseconds for so many bytes through the broker, and a mask's bytes back; nothing is done with them."""
    payload = os.urandom(round(bytes_up))
    with wire(site.broker.url) as bus:
        return median(1e3 * bus.send(payload, 1, 1) for _ in range(plan.frames * plan.rounds))


@click.command()
@click.option("--bag", type=click.Path(exists=True, path_type=Path), help="Frames to send. [a synthetic drive]")
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--engine", help="What runs it. [as its manifest says]")
@click.option("--transport", "doors", multiple=True, type=click.Choice(ALL_TRANSPORTS), help="These alone. [all]")
@click.option("--codec", type=click.Choice(["raw", "jpeg", "png", "lz4", "zstd"]), default="jpeg", show_default=True)
@click.option("--frames", type=click.IntRange(4, 10_000), default=20, show_default=True, help="A round.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there as JSON.")
def transports(bag: Path | None, models: Path | None, doors: tuple[str, ...], path: Path | None, **how: Any) -> None:
    """Compare the ways to the same worker: what each adds to inference, one frame in flight."""
    plan = Plan(
        bag=bag or sample_bag(how["frames"]), models=models or default_root(), doors=doors or ALL_TRANSPORTS, **how
    )
    with Console(stderr=True).status("preparing") as status:
        result = measure(plan, status.update)
    if path is not None:
        path.write_text(json.dumps(result, indent=2), encoding="utf-8")
    _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    plan = result["plan"]
    n = plan["frames"] * plan["rounds"]
    table = Table(
        title=f"Overhead by transport, ms; {plan['model']}, {plan['codec']}, one frame in flight, n each {n}",
        caption="vehicle, crossing, cloud: the median of each part, which need not add up to that of the whole.",
    )
    for heading in ("transport", "min", "median", "p95", "÷ grpc", "vehicle", "crossing", "cloud"):
        is_name = heading == "transport"
        table.add_column(heading, justify="left" if is_name else "right")
    for door, figures in result["doors"].items():
        times, parts, against = figures["overhead_ms"], figures["parts"], result["to_own_grpc"].get(door)
        vehicle_ms, cloud_ms = (sum(parts[part] for part in stages) for stages in (_VEHICLE, _CLOUD))
        ratio = "" if against is None else f"{against['ratio']:.2f}"
        told = (f"{value:.1f}" for value in (vehicle_ms, parts[_CROSSING], cloud_ms))
        table.add_row(door, *(f"{times[key]:.1f}" for key in ("min", "median", "p95")), ratio, *told)
    console.print(table)
    for line in _explained(result):
        console.print(line, highlight=False, markup=False)
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)


def _explained(result: Mapping[str, Any]) -> Iterator[str]:
    """Why MQTT is not our own gRPC."""
    doors, against = result["doors"], result["to_own_grpc"].get(MQTT)
    if against is None:
        return
    crossings = {door: doors[door]["parts"][_CROSSING] for door in (MQTT, _OWN_GRPC)}
    verdict, rounds = "", against["by_round"]
    if result["plan"]["codec"] == "jpeg":
        verdict = f" (target ≤ {_MQTT_TARGET:g}, {'met' if against['ratio'] <= _MQTT_TARGET else 'NOT met'})"
    yield (
        f"MQTT ÷ our gRPC: {against['ratio']:.2f}, by round {min(rounds):.2f} to {max(rounds):.2f}{verdict}; its crossing takes {crossings[MQTT]:.1f} ms, "
        f"gRPC's {crossings[_OWN_GRPC]:.1f} ms"
    )
    yield (
        f"the broker's hop: {doors[MQTT]['parts']['bytes_up'] / 1e3:.0f} KB through the broker to a client that does "
        f"nothing, and a mask's bytes back, take {result['broker_alone_ms']:.1f} ms: every byte is received and sent "
        "once more"
    )
