"""`python -m bench transports`: the overhead of every transport to the same worker, one frame in flight.

The overhead is a frame's round trip without its inference. MQTT passes through a broker; the time that the broker alone
takes for as many bytes is measured as well.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import harness
from bench.bus_echo import open_echo
from bench.harness import OVERHEAD, BenchRun, Samples
from edge.transports.transport import MQTT, TRANSPORTS
from ops.processes.child import cli_flags
from ops.processes.deployment import Deployment
from ops.processes.playback import PlaybackSettings
from shared.stages import CLOUD_STAGES, EDGE_STAGES, OPTIONAL_STAGES, Stage
from shared.terminal_table import Table, result_table

_GRPC = "grpc"
_MAX_MQTT_RATIO = 1.5  # Target with JPEG: overhead of MQTT divided by that of Skylane's gRPC.
_CROSSING = "crossing"
_VEHICLE_STAGES = [stage for stage in EDGE_STAGES if stage not in (Stage.DUE, Stage.RETURNED, *OPTIONAL_STAGES)]
_CLOUD_STAGES = [stage for stage in CLOUD_STAGES if stage not in (Stage.RECEIVED, Stage.INFERRED)]


@dataclass(frozen=True, slots=True)
class TransportPlan:
    """Settings of the comparison."""

    bag: Path = harness.bag()
    models: Path = harness.models()
    model: str = harness.model()
    engine: str | None = harness.engine()
    transports: tuple[str, ...] = harness.choices(
        tuple(TRANSPORTS), tuple(TRANSPORTS), "Transport to measure (repeatable). [all]", "--transport"
    )
    codec: str = harness.codec()
    frames: int = harness.frames(20)
    rounds: int = harness.rounds(5)


def measure(plan: TransportPlan, run: BenchRun) -> dict[str, Any]:
    """Compare the transports to the same worker: the time each adds to inference, one frame in flight."""
    settings = PlaybackSettings(plan.bag, plan.models, plan.model, plan.codec, frames=plan.frames)
    run.step("starting a worker with all endpoints")
    flags = cli_flags(engine=plan.engine)
    deployment = run.enter_context(
        Deployment(models=plan.models, model=plan.model, transports=plan.transports, flags=flags)
    )

    def play(transport: str, number: int) -> Samples:
        return harness.row_samples(deployment.play(settings, transport, run.folder / f"{transport}-{number}"))

    comparison = harness.compare({name: partial(play, name) for name in plan.transports}, plan.rounds, run.step)
    records = {name: harness.overhead_record(comparison, name) for name in plan.transports}
    ratios = {name: comparison.ratio(name, _GRPC, OVERHEAD).record() for name in records} if _GRPC in records else {}
    run.step("the broker alone")
    broker_ms = _broker_ms(deployment, records[MQTT]["parts"]["bytes_up"], plan) if MQTT in records else None
    return {
        "plan": harness.plan_record(plan),
        "transports": records,
        "to_own_grpc": ratios,
        "broker_alone_ms": broker_ms,
        "broker": deployment.broker.description,
    }


def _broker_ms(deployment: Deployment, bytes_up: float, plan: TransportPlan) -> float:
    """Median milliseconds for a payload of that size through the broker and a mask's bytes back, without any work."""
    payload = os.urandom(round(bytes_up))
    with open_echo(deployment.broker.url) as echo:
        return median(1e3 * echo.send(payload, 1, 1) for _ in range(plan.frames * plan.rounds))


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    plan = result["plan"]
    rows = []
    for name, record in result["transports"].items():
        times, parts, ratio = record["overhead_ms"], record["parts"], result["to_own_grpc"].get(name)
        vehicle_ms, cloud_ms = (sum(parts[part] for part in stages) for stages in (_VEHICLE_STAGES, _CLOUD_STAGES))
        percentiles_ms = (times[key] for key in ("min", "median", "p95"))
        rows.append((name, *percentiles_ms, ratio and ratio["ratio"], vehicle_ms, parts[_CROSSING], cloud_ms))
    columns = {"transport": "<", "min": ".1f", "median": ".1f", "p95": ".1f", "÷ grpc": ".2f"}
    yield result_table(
        f"Overhead by transport, ms; {plan['model']}, {plan['codec']}, one frame in flight, "
        f"n each {plan['frames'] * plan['rounds']}",
        {**columns, "vehicle": ".1f", "crossing": ".1f", "cloud": ".1f"},
        rows,
        "vehicle, crossing, cloud: medians of the parts, which need not add up to the median of the whole.",
    )
    yield from _mqtt_lines(result)


def _mqtt_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Explains the difference between MQTT and Skylane's gRPC."""
    records, ratio = result["transports"], result["to_own_grpc"].get(MQTT)
    if ratio is None:
        return
    crossing_ms = {name: records[name]["parts"][_CROSSING] for name in (MQTT, _GRPC)}
    verdict = ""
    if result["plan"]["codec"] == "jpeg":
        judged = harness.rounds_text(ratio["ratio"] <= _MAX_MQTT_RATIO, _MAX_MQTT_RATIO, ratio["by_round"])
        verdict = f" (target ≤ {_MAX_MQTT_RATIO:g}, {judged})"
    yield (
        f"MQTT ÷ Skylane's gRPC: {ratio['ratio']:.2f}, by round {harness.span(ratio['by_round'], 2)}{verdict}; "
        f"crossing {crossing_ms[MQTT]:.1f} ms over MQTT, {crossing_ms[_GRPC]:.1f} ms over gRPC"
    )
    yield (
        f"broker alone: {result['broker_alone_ms']:.1f} ms for {records[MQTT]['parts']['bytes_up'] / 1e3:.0f} KB to a "
        "client that only replies, and a mask's bytes back; the broker receives every byte and sends it again"
    )


transports = harness.bench_command("transports", TransportPlan, measure, _tables, json=harness.JSON_FILE)
