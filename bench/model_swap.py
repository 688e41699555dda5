"""`python -m bench swap`: swaps the version of a model repeatedly while vehicles play."""

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.logs.frame_accounting import FrameAccounts, outcome_sum
from analysis.statistics.samples import spread
from bench import harness
from bench.harness import BenchRun
from cloud.control_cli import ask
from ops.broker.broker import Broker
from ops.processes.child import BenchError, cli_flags
from ops.processes.worker_process import Worker
from ops.study.fleet import Fleet
from rosbag_tools.drive.recording import sample_bag
from shared import clock
from shared.messages.control import ControlRequest, Verb
from shared.models.repository import Repository
from shared.mqtt.bus import Bus
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from shared.runlog.latency_log import Outcome, read_rows
from shared.terminal_table import Table, result_table

_WORKER = "swapped"
_VERSIONS = ("1", "2")
_SOURCE_FRAMES = 40
_RUN_LIMIT_S = 1800.0
_LOAD_TIMEOUT_S = 300.0
_NS_PER_MS = 1e6
_GAP_TITLES = {
    "apart": "no load is in progress",
    "loading": "a version is loaded and warmed up",
    "taking_over": "the new version takes over",
}


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """Settings of the benchmark."""

    models: Path = harness.models()
    model: str = harness.model()
    swaps: int = harness.number(4, 1, 1000, "Number of swaps.")
    vehicles: int = harness.number(2, 1, 64, "Number of vehicles.")
    window: int = harness.vehicle_window()
    between: int = harness.number(15, 1, 10_000, "Frames of the first vehicle that end between two swaps.")


@dataclass(frozen=True, slots=True)
class Swap:
    """The request and the end of one swap by this process's clock, and its duration as the worker reported it."""

    requested_ns: int
    done_ns: int
    took_ms: float


def measure(plan: SwapPlan, run: BenchRun) -> dict[str, Any]:
    """Swap the version of a model repeatedly while vehicles play: lost frames, and the longest gap between replies."""
    source = sample_bag(_SOURCE_FRAMES)
    _copy_as_two_versions(plan, run.folder / "models")
    broker = run.enter_context(Broker.start())
    run.step("starting the worker")
    run.enter_context(Worker(broker.url, models=run.folder / "models", model=plan.model, name=_WORKER))
    swaps = _play(plan, broker.url, source, run)
    runs = [run.folder / f"vehicle-{number}" for number in range(1, plan.vehicles + 1)]
    return {
        "model": plan.model,
        "vehicles": plan.vehicles,
        "window": plan.window,
        **_summarise(runs, swaps),
        "broker": broker.description,
    }


def _copy_as_two_versions(plan: SwapPlan, root: Path) -> None:
    """Creates a repository in which the model has two versions with the same file, so that only the swap is measured."""
    folder = Repository(plan.models).find(plan.model).folder
    for version in _VERSIONS:
        shutil.copytree(folder, root / plan.model / version)


def _play(plan: SwapPlan, broker: str, source: Path, run: BenchRun) -> Sequence[Swap]:
    """Starts the vehicles, performs all swaps, and stops the vehicles."""
    flags = cli_flags(broker=broker, model=plan.model, window=plan.window, loop=True, closed_loop=True)
    fleet = Fleet(plan.vehicles, source, run.folder, [flags] * plan.vehicles)
    swaps: list[Swap] = []
    reached = 0  # Frames of the first vehicle that had ended when the last swap was done.

    def check() -> None:
        nonlocal reached
        if fleet.vehicles[0].closed() < reached + plan.between:
            return
        if len(swaps) == plan.swaps:
            for vehicle in fleet.vehicles:
                vehicle.stop()
            return
        run.step(f"swap {len(swaps) + 1} of {plan.swaps}")
        swaps.append(_swap(plan, bus, _VERSIONS[len(swaps) % 2]))  # The worker starts with the highest version.
        reached = fleet.vehicles[0].closed()

    with fleet, MqttBus(Address.parse(broker), "bench-swap") as bus:
        fleet.wait(_RUN_LIMIT_S, check)
    return swaps


def _swap(plan: SwapPlan, bus: Bus, version: str) -> Swap:
    requested_ns = clock.now_ns()
    request = ControlRequest("bench", uuid.uuid4().hex, Verb.LOAD, plan.model, version)
    reply = ask(bus, _WORKER, request, _LOAD_TIMEOUT_S)
    if reply.error:
        raise BenchError(f"version {version} of {plan.model} was not loaded: {reply.error}")
    return Swap(requested_ns, clock.now_ns(), reply.took_ms or 0.0)


def _summarise(runs: Sequence[Path], swaps: Sequence[Swap]) -> dict[str, Any]:
    accounts, turned_back = FrameAccounts(), 0
    gaps_ms: dict[str, list[float]] = {"apart": [], "loading": [], "taking_over": []}
    for run in runs:
        accounts.add(run)
        rows = sorted(read_rows(run), key=lambda row: int(row["sequence"]))
        versions = [row["model_version"] for row in rows if row["outcome"] == Outcome.ANSWERED]
        changes = sum(before != after for before, after in pairwise(versions))
        turned_back += abs(changes - len(swaps))
        for when, gap_ms in _gaps(rows, swaps):
            gaps_ms[when].append(gap_ms)
    every = [gap for gaps in gaps_ms.values() for gap in gaps]
    return {
        "swaps": len(swaps),
        "load_ms": spread([swap.took_ms for swap in swaps]),
        "read": accounts.read,
        "outcomes": accounts.by_outcome,
        "unaccounted": accounts.unaccounted,
        "turned_back": turned_back,
        "median_gap_ms": spread(every)["median"],
        "longest_gap_ms": max(every),
        "gaps_ms": {when: {"n": len(gaps), **spread(gaps), "max": max(gaps)} for when, gaps in gaps_ms.items() if gaps},
    }


def _gaps(rows: Sequence[Mapping[str, str]], swaps: Sequence[Swap]) -> Iterator[tuple[str, float]]:
    """Yields the times between consecutive replies to a vehicle in milliseconds, each with a key of `_GAP_TITLES`.

    `taking_over`: the replies are of different versions; `loading`: a version was being loaded between them.
    """
    answered = [row for row in rows if row["outcome"] == Outcome.ANSWERED]
    arrived = sorted((int(row["t_returned_ns"]), row["model_version"]) for row in answered)
    for (before_ns, old), (after_ns, new) in pairwise(arrived):
        is_loading = any(swap.requested_ns < after_ns and before_ns < swap.done_ns for swap in swaps)
        when = "taking_over" if old != new else "loading" if is_loading else "apart"
        yield when, (after_ns - before_ns) / _NS_PER_MS


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    outcomes = result["outcomes"]
    values = {
        "frames read": result["read"],
        "answered": outcomes["answered"],
        "lost": outcomes["lost"],
        "rejected": outcomes["rejected"],
        "unaccounted": result["unaccounted"],
        "changes of the version beyond those of the swaps, or missing": result["turned_back"],
        "longest gap between replies, ms": f"{result['longest_gap_ms']:.0f}",
        "median gap, ms": f"{result['median_gap_ms']:.0f}",
        "longest ÷ median": f"{result['longest_gap_ms'] / result['median_gap_ms']:.1f}",
        "duration of a load, ms, median": f"{result['load_ms']['median']:.0f}",
    }
    title = f"{result['model']} swapped {result['swaps']} times under {result['vehicles']} vehicles"
    yield result_table(title, {"measure": "<", "value": ""}, values.items())
    percentiles = ("median", "p95", "max")
    yield result_table(
        "Gaps between a vehicle's replies, ms",
        {"while": "<", "n": "", **dict.fromkeys(percentiles, ".0f")},
        [
            (_GAP_TITLES[when], gaps["n"], *(gaps[key] for key in percentiles))
            for when, gaps in result["gaps_ms"].items()
        ],
    )
    yield outcome_sum(result)


swap = harness.bench_command("swap", SwapPlan, measure, _tables)
