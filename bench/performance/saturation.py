"""`skylane bench saturation`: offers a worker more than it can do: throughput, fairness and outcomes of the frames.

Rounds alternate between direct calls of the engine and vehicles that together offer a multiple of its capacity. Their
frames are encoded beforehand, because in reality the vehicles' computers do that work.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from analysis.statistics.samples import jain, max_min_shares, spread
from bench.harness import options
from bench.harness.comparison import plan_record
from bench.harness.output import target_line
from bench.load.load_clients import ClientTally, LoadImage, connect_clients, run_open_loop
from cloud.models.loader import ModelLoader
from edge.transports.transport import MQTT
from ops.processes.environment import BenchRun
from ops.processes.gateway_deployment import GatewayDeployment
from ops.processes.playback import BareEngine, PlaybackSettings, encoded_frames, model_inputs
from ops.processes.worker_process import engine_flags
from rosbag_tools.drive.recording import sample_bag
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table, result_table

_EQUAL, _GREEDY = "equal", "greedy"  # A greedy round has one vehicle with a higher rate.
_GREEDY_FACTOR = 10.0  # Rate of the greedy vehicle divided by that of each other vehicle.
_WARM_UP_S = 2.0  # Start of a round that is not counted, while the queue fills.
_SOURCE_FRAMES = 40
_THROUGHPUT_TARGET = 0.95  # Frames answered in time divided by the capacity of the bare engine.
_JAIN_TARGET = 0.98


@dataclass(frozen=True, slots=True)
class SaturationPlan:
    """Settings of the benchmark."""

    models: Path = options.models()
    model: str = options.model()
    engine: str | None = options.engine()
    precision: str | None = options.option(help="Precision of the engine. [as the model's manifest says]")
    vehicles: int = options.number(8, 2, 64, "Number of vehicles.")
    factor: float = options.number(2.0, 0.1, 20, "Offered load, in multiples of the engine's capacity.")
    deadline_frames: float = options.number(10.0, 1, 1000, "Deadline, in multiples of one inference.")
    window: int = options.number(4, 1, 1000, "Unanswered frames per vehicle.")
    seconds: float = options.number(15.0, 1, 3600, "Duration of a round.")
    rounds: int = options.rounds(3, 100)
    bare_frames: int = 30  # Per model instance.
    codec: str = "jpeg"
    quality: int = 85


def measure(plan: SaturationPlan, run: BenchRun) -> dict[str, Any]:
    """Offer a worker more than it can do: frames answered in time, fairness, and outcomes of the other frames."""
    placement = Placement(device="cpu", precision=None if plan.precision is None else Precision(plan.precision))
    settings = PlaybackSettings(
        sample_bag(_SOURCE_FRAMES), plan.models, plan.model, codec=plan.codec, quality=plan.quality
    )
    model = run.enter_context(ModelLoader(Repository(plan.models), placement, engine=plan.engine).open(plan.model))
    flags = engine_flags(engine=plan.engine, precision=plan.precision)
    deployment = run.enter_context(
        GatewayDeployment(models=plan.models, model=plan.model, transports=[MQTT], flags=flags)
    )
    images = [LoadImage(message) for message in encoded_frames(settings, model)]
    model.warm_up()
    run.step("the bare engine")
    bare = BareEngine(model, model_inputs(settings, model), plan.bare_frames)
    rounds = []
    for number, load in product(range(plan.rounds), (_EQUAL, _GREEDY)):
        run.step(f"round {number + 1} of {plan.rounds}: {plan.vehicles} vehicles, {load}")
        rates_hz = offered_rates_hz(plan, bare.hz, is_greedy=load == _GREEDY)
        deadline_ms = plan.deadline_frames * 1e3 / bare.hz
        with ExitStack() as stack:
            transports = [MQTT] * plan.vehicles
            clients = connect_clients(stack, deployment, transports, images, plan.window, deadline_ms=deadline_ms)
            span_ns = run_open_loop(clients, rates_hz, _WARM_UP_S + plan.seconds)
        tallies = [client.tally for client in clients]
        run.step(f"round {number + 1} of {plan.rounds}: the bare engine")
        rounds.append(summarise_round(load, rates_hz, tallies, span_ns, bare.round_hz()))
    return {
        "plan": plan_record(plan),
        "rounds": rounds,
        "share": _median(rounds, _EQUAL, "share"),
        "jain": _median(rounds, _EQUAL, "jain"),
        "greedy_jain": _median(rounds, _GREEDY, "jain"),
        "greedy_share": _median(rounds, _GREEDY, "greedy_share"),
        "unaccounted": sum(each["unaccounted"] for each in rounds),
        "peak_mb": {"worker": _peak_mb(deployment.worker.pid), "broker": _peak_mb(deployment.broker.pid)},
        "engine": model.describe(),
        "broker": deployment.broker.description,
    }


def offered_rates_hz(plan: SaturationPlan, capacity_hz: float, *, is_greedy: bool) -> list[float]:
    """Divides `factor` times the capacity among the vehicles."""
    weights = [_GREEDY_FACTOR if is_greedy and number == 0 else 1.0 for number in range(plan.vehicles)]
    return [plan.factor * capacity_hz * weight / sum(weights) for weight in weights]


def summarise_round(
    load: str,
    rates_hz: Sequence[float],
    tallies: Sequence[ClientTally],
    span_ns: tuple[int, int],
    capacity_hz: float,
) -> dict[str, Any]:
    """Computes the results of a round.

    Throughput and fairness count masks that arrived in time and within the span after the warm-up; outcomes and latencies
    count all frames of the round.
    """
    begin_ns, end_ns = span_ns[0] + round(_WARM_UP_S * 1e9), span_ns[1]
    in_time_hz = [
        sum(begin_ns <= at_ns < end_ns for at_ns in tally.answered_ns) * 1e9 / (end_ns - begin_ns) for tally in tallies
    ]
    fair_hz = max_min_shares(rates_hz, sum(in_time_hz))
    relative = [got / fair if fair else 0.0 for got, fair in zip(in_time_hz, fair_hz, strict=True)]
    outcomes: Counter[str] = Counter()
    for tally in tallies:
        outcomes.update(tally.outcomes)
    latencies_ms = [value for tally in tallies for value in tally.latencies_ms]
    return {
        "load": load,
        "capacity_hz": capacity_hz,
        "in_time_hz": sum(in_time_hz),
        "share": sum(in_time_hz) / capacity_hz,
        "jain": jain(relative),  # Of the vehicles' throughputs, each divided by its max-min fair share.
        "greedy_share": relative[0] if load == _GREEDY else None,
        "outcomes": dict(outcomes),
        "unaccounted": sum(tally.offered for tally in tallies) - outcomes.total(),
        "latency_ms": spread(latencies_ms) if latencies_ms else {},
    }


def _median(rounds: Sequence[Mapping[str, Any]], load: str, measure: str) -> float:
    return float(median(each[measure] for each in rounds if each["load"] == load))


def _peak_mb(pid: int | None) -> float | None:
    """The peak resident memory of a process in MB (10⁶ bytes), from the kernel."""
    if pid is None:
        return None
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    plan = result["plan"]
    columns = {"load": "<", "bare /s": ".2f", "in time /s": ".2f", "share": ".3f", "Jain": ".4f", "greedy": ".3f"}
    keys = ("load", "capacity_hz", "in_time_hz", "share", "jain", "greedy_share")
    yield result_table(
        f"{plan['vehicles']} vehicles offer {plan['factor']:g}× the capacity of the bare engine, "
        f"deadline {plan['deadline_frames']:g} inference times",
        {**columns, "p50 ms": "", "p99 ms": ""},
        [
            (*(each[key] for key in keys), *(shown(each["latency_ms"].get(key), 0) for key in ("median", "p99")))
            for each in result["rounds"]
        ],
        NOTE,
    )
    rows = []
    for load in (_EQUAL, _GREEDY):
        counts: Counter[str] = Counter()
        for each in result["rounds"]:
            counts.update(each["outcomes"] if each["load"] == load else {})
        rows.append((load, counts.total(), *(counts[outcome] for outcome in Outcome)))
    columns = {"load": "<", "offered": "", **dict.fromkeys(map(str, Outcome), "")}
    yield result_table("Outcomes of the frames, all rounds", columns, rows)
    for name, load, measure, target in (
        ("answered in time ÷ capacity of the bare engine", _EQUAL, "share", _THROUGHPUT_TARGET),
        ("Jain's index, equal vehicles", _EQUAL, "jain", _JAIN_TARGET),
        ("Jain's index of max-min shares, one greedy vehicle", _GREEDY, "jain", _JAIN_TARGET),
    ):
        yield target_line(name, [each[measure] for each in result["rounds"] if each["load"] == load], target)
    peaks = ", ".join(f"{name} {peak:.0f} MB" for name, peak in result["peak_mb"].items() if peak is not None)
    yield f"unaccounted {result['unaccounted']}; peak resident memory: {peaks}"


saturation = options.bench_command("saturation", SaturationPlan, measure, _tables)
