"""`python -m bench overhead`: compares the round trip through broker and worker with direct calls of the same engine.

In every round, the frames go through broker and worker, first one at a time and then several at once, and the same frames
go directly into the engine, as the worker's decoder would pass them. Nothing else runs during a turn.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from analysis.statistics.samples import PERCENTILES
from bench import harness
from bench.harness import OVERHEAD, TOTAL, BenchRun, Comparison, Samples
from cloud.models.loader import ModelLoader
from edge.transports.transport import MQTT
from ops.broker.broker import Broker, BrokerKind
from ops.processes.deployment import Deployment
from ops.processes.playback import PlaybackSettings, inference_hz, inference_ms, model_inputs
from shared.models.repository import Repository
from shared.runlog import percentiles
from shared.runlog.latency_table import PARTS
from shared.terminal_table import Table, result_table

_BARE, _REMOTE, _ISOLATED = "bare inference", "round trip", "round trip, isolated engine"
_RATE = "rate_hz"
_VEHICLE = "vehicle"
_VEHICLE_PARTS = ("read", "demosaiced", "preprocessed", "encoded")


@dataclass(frozen=True, slots=True)
class OverheadPlan:
    """Settings of the comparison."""

    bag: Path = harness.bag()
    models: Path = harness.models()
    model: str = harness.model()
    codec: str = harness.codec()
    quality: int = harness.number(85, 1, 100, "JPEG quality.")
    rounds: int = harness.rounds(5)
    frames: int = harness.frames(20)
    window: int = harness.throughput_window()
    device: str = harness.option("auto", show_default=True, help="Device of the engine.")
    broker_kind: str = harness.option(
        BrokerKind.AUTO.value,
        flag="--broker",
        type=click.Choice([kind.value for kind in BrokerKind]),
        help="Kind of broker to start.",
    )
    isolate: bool = harness.option(
        default=False, is_flag=True, help="Also measure a worker with its engine in a separate process."
    )


def measure(plan: OverheadPlan, run: BenchRun) -> dict[str, Any]:
    """Compare the whole round trip with direct inference, in alternating rounds of the same frames."""
    settings = PlaybackSettings(plan.bag, plan.models, plan.model, plan.codec, plan.quality, plan.frames)
    model = run.enter_context(ModelLoader(Repository(plan.models)).open(plan.model))
    candidates: dict[str, Callable[[int], Samples]] = {}
    for name, flags in {_REMOTE: (), **({_ISOLATED: ("--isolate",)} if plan.isolate else {})}.items():
        # One broker per worker: workers of one broker would share the frames.
        broker = run.enter_context(Broker.start(kind=plan.broker_kind))
        deployment = run.enter_context(
            Deployment(
                models=plan.models,
                model=plan.model,
                transports=[MQTT],
                broker=broker,
                device=plan.device,
                flags=flags,
            )
        )
        candidates[name] = partial(_play, deployment, settings, plan.window, run.folder / name)
    model.warm_up()
    images = model_inputs(settings, model)
    candidates[_BARE] = lambda _round: {
        TOTAL: inference_ms(model, images, plan.frames),
        _RATE: [inference_hz(model, images, plan.frames)],
    }
    comparison = harness.compare(candidates, plan.rounds, run.step)
    return {
        **_record(comparison, _REMOTE),
        "model": plan.model,
        "codec": plan.codec,
        "quality": plan.quality if plan.codec == "jpeg" else None,
        "window": plan.window,
        "broker": broker.description,
        "engine": model.describe(),
        **({"isolated": _record(comparison, _ISOLATED)} if plan.isolate else {}),
    }


def _play(deployment: Deployment, settings: PlaybackSettings, window: int, folder: Path, number: int) -> Samples:
    rows, rate_hz = deployment.play_twice(settings, folder / str(number), window)
    return {
        **harness.row_samples(rows),
        _VEHICLE: [sum(float(row[f"{part}_ms"]) for part in _VEHICLE_PARTS) for row in rows],
        _RATE: [rate_hz],
    }


def _record(comparison: Comparison, name: str) -> dict[str, Any]:
    overhead = comparison.ratio(name, _BARE, TOTAL)
    throughput = comparison.ratio(name, _BARE, _RATE, fmean)
    return {
        "overhead_ratio": overhead.value,
        "throughput_ratio": throughput.value,
        "samples": {
            "rounds": len(overhead.by_round),
            "remote": len(comparison.samples(name, TOTAL)),
            "bare": len(comparison.samples(_BARE, TOTAL)),
        },
        "spread": {
            "overhead_ratio_by_round": list(overhead.by_round),
            "throughput_ratio_by_round": list(throughput.by_round),
            "remote_ms": comparison.spread(name, TOTAL),
            "bare_ms": comparison.spread(_BARE, TOTAL),
            "remote_hz": comparison.samples(name, _RATE),
            "bare_hz": comparison.samples(_BARE, _RATE),
        },
        "overhead_ms": comparison.spread(name, OVERHEAD),
        "vehicle_ms": comparison.spread(name, _VEHICLE),
        "breakdown_ms": {str(part): comparison.spread(name, part) for part in PARTS},
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    rows = []
    for suffix, values in (("", result), (", isolated", result.get("isolated"))):
        if values is None:
            continue
        samples = values["samples"]
        for name, source in (
            ("overhead_ratio", f"{samples['remote']} frames, {samples['bare']} bare"),
            ("throughput_ratio", f"window {result['window']}"),
        ):
            rows.append((f"{name}{suffix}", values[name], harness.span(values["spread"][f"{name}_by_round"]), source))
    yield result_table(
        f"{result['model']}, {result['codec']}, {result['samples']['rounds']} alternating rounds",
        {"ratio": "<", "value": ".3f", "by round, least to most": "<", "from": "<"},
        rows,
    )
    totals = {
        "whole round trip": result["spread"]["remote_ms"],
        "bare inference": result["spread"]["bare_ms"],
        "round trip without inference": result["overhead_ms"],
        "vehicle: read to encoded": result["vehicle_ms"],
    }
    cells = [
        (name, *(percentiles.shown(row[key]) for key in PERCENTILES))
        for name, row in (totals | result["breakdown_ms"]).items()
    ]
    note = percentiles.NOTE if any(percentiles.MISSING in row for row in cells) else ""
    yield result_table("Milliseconds", {"measure": "<", **dict.fromkeys(PERCENTILES, "")}, cells, note)


overhead = harness.bench_command("overhead", OverheadPlan, measure, _tables)
