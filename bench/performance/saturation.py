"""A worker offered more than it can do: how much of it is answered in time, how fairly, and what becomes of the rest.

Rounds alternate: the bare engine in a loop, then many vehicles that together offer a multiple of what it can do, then the
bare engine again. Their frames are encoded before the round: what a vehicle's own computer would do is not done on the
worker's.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from bench.harness.fairness import jain, max_min_shares
from bench.harness.output import machine_line
from bench.harness.sample_bag import sample_bag
from bench.harness.samples import spread
from bench.load import playback
from bench.load.load_generator import LoadGenerator, OfferedLoad, VehicleTally
from bench.load.worker_process import Worker
from cloud.engines.engine import Placement, Precision
from cloud.models.repository import Repository, default_root
from shared.broker.broker import Broker
from shared.flags import FiniteRange
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import NOTE, shown
from shared.runtime.machine import machine
from shared.terminal_table import Table

_SETTLING_S = 2.0  # A round's first seconds, which do not count: the queue is still filling.
_GREEDY = 10.0  # Times what each of the others offers.
_SHARE_TARGET = 0.95  # Of the bare engine's frames a second.
_JAIN_TARGET = 0.98


@dataclass(frozen=True, slots=True)
class Plan:
    """What is offered, and how often."""

    models: Path
    model: str = "road-small"
    engine: str | None = None
    precision: str | None = None
    vehicles: int = 8
    factor: float = 2.0  # Times the bare engine's capacity.
    deadline_frames: float = 10.0  # Times what the bare engine takes for one.
    window: int = 4  # Unanswered frames of a vehicle.
    seconds: float = 15.0  # Of a round.
    rounds: int = 3
    bare_frames: int = 30  # Of each batch that is inferred at a time.
    codec: str = "jpeg"
    quality: int = 85
    flags: tuple[str, ...] = ()  # More of `skylane cloud serve`.


@dataclass(frozen=True, slots=True)
class Round:
    """What became of one round's frames."""

    load: str  # "equal", or "greedy": one vehicle offers ten times what each of the others does.
    capacity_hz: float  # Of the bare engine: the mean of the loops before and after.
    in_time_hz: float  # While frames were offered, without the settling at the start.
    share: float  # in_time_hz / capacity_hz
    jain: float  # Of what each vehicle got, over its max-min fair share of what was answered.
    greedy_share: float | None  # What the greedy one got over its max-min fair share.
    outcomes: Mapping[str, int]
    unaccounted: int
    latency_ms: Mapping[str, float]


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Run the rounds; `on_step` is told before each. Returns what `--json` prints.

    Raises:
        SkylaneError: the model, the broker or the worker cannot be used.
    """
    precision = None if plan.precision is None else Precision(plan.precision)
    repository, placement = Repository(plan.models), Placement(device="cpu", precision=precision)
    bag = sample_bag(40)
    frames_plan = playback.Plan(bag=bag, models=plan.models, model=plan.model, codec=plan.codec, quality=plan.quality)
    rounds = []
    with (
        repository.load(plan.model, placement, engine=plan.engine) as model,
        Broker.start(kind="mosquitto") as broker,
        Worker(
            broker.url,
            models=plan.models,
            model=plan.model,
            device="cpu",
            engine=plan.engine,
            precision=plan.precision,
            flags=plan.flags,
        ) as worker,
    ):
        pictures = playback.decoded(frames_plan, model)
        messages = playback.prepared(frames_plan, model)
        model.warm_up()
        on_step("the bare engine")
        bare_hz = [playback.bare_hz(model, pictures, plan.bare_frames)]
        for number in range(plan.rounds):
            for load in ("equal", "greedy"):
                on_step(f"round {number + 1} of {plan.rounds}: {plan.vehicles} vehicles, {load}")
                offered = offered_loads(plan, bare_hz[-1], is_greedy=load == "greedy")
                deadline_ms = plan.deadline_frames * 1e3 / bare_hz[-1]
                duration_s = _SETTLING_S + plan.seconds
                tallies, span_ns = LoadGenerator(
                    broker.url, messages, offered, deadline_ms=deadline_ms, duration_s=duration_s
                ).run()
                on_step(f"round {number + 1} of {plan.rounds}: the bare engine")
                bare_hz.append(playback.bare_hz(model, pictures, plan.bare_frames))
                rounds.append(judged(load, offered, tallies, span_ns, sum(bare_hz[-2:]) / 2))
        return {
            "plan": {key: str(value) if isinstance(value, Path) else value for key, value in asdict(plan).items()},
            "rounds": [asdict(each) for each in rounds],
            "share": _median(rounds, "equal", "share"),
            "jain": _median(rounds, "equal", "jain"),
            "greedy_jain": _median(rounds, "greedy", "jain"),
            "greedy_share": _median(rounds, "greedy", "greedy_share"),
            "unaccounted": sum(each.unaccounted for each in rounds),
            "peak_mb": {"worker": _peak_mb(worker.pid), "broker": _peak_mb(broker.pid)},
            "engine": model.describe(),
            "broker": broker.description,
            "machine": machine(),
        }


def offered_loads(plan: Plan, capacity_hz: float, *, is_greedy: bool) -> tuple[OfferedLoad, ...]:
    """What each vehicle offers, `factor` times the capacity in all."""
    weights = [_GREEDY if is_greedy and number == 0 else 1.0 for number in range(plan.vehicles)]
    unit_hz = plan.factor * capacity_hz / sum(weights)
    return tuple(
        OfferedLoad(f"vehicle-{number + 1}", unit_hz * weight, plan.window) for number, weight in enumerate(weights)
    )


def judged(
    load: str,
    offered: Sequence[OfferedLoad],
    tallies: Sequence[VehicleTally],
    span_ns: tuple[int, int],
    capacity_hz: float,
) -> Round:
    """The figures of a round: of the answers that came in time and within its span, without the settling at its start.

    Outcomes and latencies are those of all its frames, so that each is accounted for. A vehicle's fair share is the max-min
    fair one of what was answered in time.
    """
    begun_ns, ended_ns = span_ns[0] + round(_SETTLING_S * 1e9), span_ns[1]
    got_hz = [
        sum(begun_ns <= at_ns < ended_ns for at_ns in tally.answered_ns) * 1e9 / (ended_ns - begun_ns)
        for tally in tallies
    ]
    fair_hz = max_min_shares([each.rate_hz for each in offered], sum(got_hz))
    relative = [got / fair if fair else 0.0 for got, fair in zip(got_hz, fair_hz, strict=True)]
    outcomes: Counter[str] = Counter()
    for tally in tallies:
        outcomes.update(tally.outcomes)
    latencies_ms = [value for tally in tallies for value in tally.latencies_ms]
    return Round(
        load=load,
        capacity_hz=capacity_hz,
        in_time_hz=sum(got_hz),
        share=sum(got_hz) / capacity_hz,
        jain=jain(relative),
        greedy_share=relative[0] if load == "greedy" else None,
        outcomes=dict(outcomes),
        unaccounted=sum(tally.offered for tally in tallies) - outcomes.total(),
        latency_ms=spread(latencies_ms) if latencies_ms else {},
    )


def _median(rounds: Sequence[Round], load: str, figure: str) -> float:
    return float(np.median([getattr(each, figure) for each in rounds if each.load == load]))


def _peak_mb(pid: int | None) -> float | None:
    """The most resident memory that a process has had, MB (10⁶ bytes), as the kernel tells it."""
    if pid is None:
        return None
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None


@click.command()
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--engine", help="What runs it. [as its manifest says]")
@click.option("--precision", help="What it computes in. [as its manifest says]")
@click.option("--vehicles", type=click.IntRange(2, 64), default=8, show_default=True)
@click.option("--factor", type=FiniteRange(0.1, 20), default=2.0, show_default=True, help="Of the capacity.")
@click.option("--deadline-frames", type=FiniteRange(1, 1000), default=10.0, show_default=True, help="Frame times.")
@click.option("--window", type=click.IntRange(1, 1000), default=4, show_default=True, help="Of each vehicle.")
@click.option("--seconds", type=FiniteRange(1, 3600), default=15.0, show_default=True, help="Of a round.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def saturation(models: Path | None, *, as_json: bool, **plan: Any) -> None:
    """Offer a worker more than it can do: what is answered in time, how fairly, and what becomes of the rest."""
    console = Console(stderr=True)
    with console.status("preparing") as status:
        result = measure(Plan(models=models or default_root(), **plan), status.update)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    plan = result["plan"]
    table = Table(
        title=f"{plan['vehicles']} vehicles offer {plan['factor']:g}× what the bare engine does, "
        f"deadline {plan['deadline_frames']:g} frame times",
        caption=NOTE,
    )
    for heading in ("load", "bare /s", "in time /s", "share", "Jain", "greedy", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    fates = Table(title="What became of the frames, all rounds")
    for heading in ("load", "offered", *Outcome):
        fates.add_column(heading, justify="left" if heading == "load" else "right")
    for load in ("equal", "greedy"):
        counts: Counter[str] = Counter()
        for each in result["rounds"]:
            counts.update(each["outcomes"] if each["load"] == load else {})
        fates.add_row(load, str(counts.total()), *(str(counts[outcome]) for outcome in Outcome))
    for each in result["rounds"]:
        greedy = "" if each["greedy_share"] is None else f"{each['greedy_share']:.3f}"
        latency = [shown(each["latency_ms"].get(key), 0) for key in ("median", "p99")]
        rates = [f"{each[key]:.2f}" for key in ("capacity_hz", "in_time_hz")]
        table.add_row(each["load"], *rates, f"{each['share']:.3f}", f"{each['jain']:.4f}", greedy, *latency)
    console.print(table)
    console.print(fates)
    for name, value, target in (
        ("answered in time, over the bare engine's capacity", result["share"], _SHARE_TARGET),
        ("Jain's index, equal vehicles", result["jain"], _JAIN_TARGET),
        ("Jain's index of max-min shares, one greedy", result["greedy_jain"], _JAIN_TARGET),
    ):
        verdict = "met" if value >= target else "NOT met"
        console.print(f"{name}: {value:.3f} (median of rounds; target {target}, {verdict})", highlight=False)
    peaks = ", ".join(f"{name} {peak:.0f} MB" for name, peak in result["peak_mb"].items() if peak is not None)
    console.print(f"unaccounted {result['unaccounted']}; peak resident memory: {peaks}", highlight=False)
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)
    console.print(result["engine"], highlight=False)
