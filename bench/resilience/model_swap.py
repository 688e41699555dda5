"""`skylane bench swap`: a model is swapped for another version, again and again, while vehicles play."""

import json
import os
import shutil
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from bench.harness.output import machine_line
from bench.harness.sample_bag import sample_bag
from bench.harness.samples import spread
from bench.load.playback import BenchError
from bench.load.worker_process import Worker
from bench.study.execution.fleet import Fleet
from cloud.control_cli import ask
from cloud.models.repository import Repository, default_root
from shared import clock
from shared.broker.broker import Broker
from shared.messages.control import ControlRequest, Verb
from shared.mqtt.bus import Bus
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from shared.runlog.latency_log import CSV_NAME, Outcome, read_rows
from shared.runlog.run_manifest import read_manifest
from shared.runtime.machine import machine
from shared.terminal_table import Table

_WORKER = "swapped"
_VERSIONS = ("1", "2")
_SOURCE_FRAMES = 40
_LIMIT_S = 1800.0
_LOAD_S = 300.0
_MS = 1e6


@dataclass(frozen=True, slots=True)
class Plan:
    """What is swapped and how often."""

    models: Path
    model: str = "road-small"
    swaps: int = 4
    vehicles: int = 2
    window: int = 2  # Of a vehicle, always full: every frame is sent, so that each that is lost shows.
    between: int = 15  # Answers of the first vehicle before each swap, and after the last.


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap: when it was asked for and done by this process's clock, and what the worker said it took."""

    asked_ns: int
    done_ns: int
    took_ms: float


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Swap versions under load. Returns what `--json` prints.

    Raises:
        SkylaneError: broker, worker or vehicle failed, or a version could not be loaded.
    """
    source = sample_bag(_SOURCE_FRAMES)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-swap-")))
        _two_versions(plan, scratch / "models")
        broker = stack.enter_context(Broker.start())
        on_step("starting the worker")
        stack.enter_context(Worker(broker.url, models=scratch / "models", model=plan.model, name=_WORKER))
        swaps = _play(plan, broker.url, source, scratch, on_step)
        runs = [scratch / f"vehicle-{number}" for number in range(1, plan.vehicles + 1)]
        result = _figures(runs, swaps)
        description = broker.description
    return {
        "model": plan.model,
        "vehicles": plan.vehicles,
        "window": plan.window,
        **result,
        "broker": description,
        "machine": machine(),
    }


def _two_versions(plan: Plan, root: Path) -> None:
    """A repository in which the model has two versions, of the same file: the swap is measured, not the models."""
    folder = Repository(plan.models).folder(plan.model)
    for version in _VERSIONS:
        shutil.copytree(folder, root / plan.model / version)


def _play(plan: Plan, broker: str, source: Path, scratch: Path, on_step: Callable[[str], None]) -> Sequence[Swap]:
    """Have the vehicles play, swap as often as planned, and stop them."""
    flags = ["--broker", broker, "--model", plan.model, "--loop", "--closed-loop", "--window", str(plan.window)]
    fleet = Fleet(plan.vehicles, source, scratch, [flags] * plan.vehicles)
    swaps: list[Swap] = []
    reached = 0  # Answers that the first vehicle had when the last swap was done.

    def check() -> None:
        nonlocal reached
        answered = _rows(scratch / "vehicle-1" / CSV_NAME)
        if answered < reached + plan.between:
            return
        if len(swaps) == plan.swaps:
            for pid in fleet.pids.values():
                os.kill(pid, signal.SIGINT)
            reached = 1 << 62
            return
        on_step(f"swap {len(swaps) + 1} of {plan.swaps}")
        swaps.append(_swap(plan, bus, _VERSIONS[len(swaps) % 2]))  # The highest was loaded first.
        reached = _rows(scratch / "vehicle-1" / CSV_NAME)

    with fleet, MqttBus(Address.parse(broker), "bench-swap") as bus:
        fleet.wait(_LIMIT_S, check)
    return swaps


def _swap(plan: Plan, bus: Bus, version: str) -> Swap:
    asked_ns = clock.now_ns()
    request = ControlRequest("bench", uuid.uuid4().hex, Verb.LOAD, plan.model, version)
    reply = ask(bus, _WORKER, request, _LOAD_S)
    if reply.error:
        raise BenchError(f"version {version} of {plan.model} was not loaded: {reply.error}")
    return Swap(asked_ns, clock.now_ns(), reply.took_ms or 0.0)


def _figures(runs: Sequence[Path], swaps: Sequence[Swap]) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    read, unaccounted, turned_back = 0, 0, 0
    gaps_ms: dict[str, list[float]] = {"apart": [], "loading": [], "taking_over": []}
    for run in runs:
        rows = sorted(read_rows(run), key=lambda row: int(row["sequence"]))
        frames_read = read_manifest(run)["frames_read"]
        read += frames_read
        unaccounted += abs(frames_read - len({row["sequence"] for row in rows}))
        outcomes.update(row["outcome"] for row in rows)
        versions = [row["model_version"] for row in rows if row["outcome"] == Outcome.ANSWERED]
        changes = sum(before != after for before, after in pairwise(versions))
        turned_back += abs(changes - len(swaps))
        for when, gap_ms in _gaps(rows, swaps):
            gaps_ms[when].append(gap_ms)
    every = [gap for gaps in gaps_ms.values() for gap in gaps]
    return {
        "swaps": len(swaps),
        "load_ms": spread([swap.took_ms for swap in swaps]),
        "read": read,
        "outcomes": {outcome.value: outcomes.get(outcome, 0) for outcome in Outcome},
        "unaccounted": unaccounted,
        "turned_back": turned_back,
        "median_gap_ms": spread(every)["median"],
        "longest_gap_ms": max(every),
        "gaps_ms": {when: {"n": len(gaps), **spread(gaps), "max": max(gaps)} for when, gaps in gaps_ms.items() if gaps},
    }


def _gaps(rows: Sequence[Mapping[str, str]], swaps: Sequence[Swap]) -> Iterator[tuple[str, float]]:
    """The times between one answer and the next of a vehicle, and what the worker did meanwhile.

    `taking_over`: the two are of different versions; `loading`: a load was under way at some time between them.
    """
    answered = [row for row in rows if row["outcome"] == Outcome.ANSWERED]
    came = sorted((int(row["t_returned_ns"]), row["model_version"]) for row in answered)
    for (before_ns, old), (after_ns, new) in pairwise(came):
        loading = any(swap.asked_ns < after_ns and before_ns < swap.done_ns for swap in swaps)
        when = "taking_over" if old != new else "loading" if loading else "apart"
        yield when, (after_ns - before_ns) / _MS


def _rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


@click.command()
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--swaps", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option("--vehicles", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--window", type=click.IntRange(1, 64), default=2, show_default=True, help="Of a vehicle.")
@click.option("--between", type=click.IntRange(1, 10_000), default=15, show_default=True, help="Answers, swap to swap.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def swap(models: Path | None, *, as_json: bool, **plan: Any) -> None:
    """Swap a model for another version again and again while vehicles play: what is lost, and the longest gap."""
    with Console(stderr=True).status("preparing") as status:
        result = measure(Plan(models=models or default_root(), **plan), status.update)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    outcomes = result["outcomes"]
    load = result["load_ms"]
    table = Table(title=f"{result['model']} swapped {result['swaps']} times under {result['vehicles']} vehicles")
    table.add_column("figure")
    table.add_column("value", justify="right")
    figures = {
        "frames read": result["read"],
        "answered": outcomes["answered"],
        "lost": outcomes["lost"],
        "rejected": outcomes["rejected"],
        "unaccounted": result["unaccounted"],
        "answers of a version that was swapped out before": result["turned_back"],
        "longest gap between answers, ms": f"{result['longest_gap_ms']:.0f}",
        "median gap, ms": f"{result['median_gap_ms']:.0f}",
        "longest ÷ median": f"{result['longest_gap_ms'] / result['median_gap_ms']:.1f}",
        "a load until it answers, ms, median": f"{load['median']:.0f}",
    }
    for name, value in figures.items():
        table.add_row(name, str(value))
    console.print(table)
    gaps = Table(title="Gaps between a vehicle's answers, ms")
    for heading in ("while", "n", "median", "p95", "max"):
        gaps.add_column(heading, justify="left" if heading == "while" else "right")
    for when, values in result["gaps_ms"].items():
        told = (f"{values[key]:.0f}" for key in ("median", "p95", "max"))
        gaps.add_row(_WHEN[when], str(values["n"]), *told)
    console.print(gaps)
    sums = " + ".join(f"{outcome} {count}" for outcome, count in outcomes.items())
    console.print(f"read {result['read']} = {sums}", highlight=False)
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)


_WHEN = {
    "apart": "nothing is loaded",
    "loading": "a version is loaded and warmed up",
    "taking_over": "the new version takes over",
}
