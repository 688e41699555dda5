"""`skylane bench overhead`: compares the round trip through broker and worker with direct calls of the same engine.

Rounds alternate: the frames through broker and worker, the same frames directly into the engine, as the worker's decoder
would pass them; first one frame at a time, then several at once. Nothing else runs during a turn.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.harness import options
from bench.harness.comparison import OVERHEAD, Comparison, Samples, compare, frame_samples
from bench.harness.output import span, spread_table
from cloud.models.loader import ModelLoader
from ops.broker.broker import Broker
from ops.processes.environment import BenchRun
from ops.processes.playback import (
    TOTAL,
    PlaybackSettings,
    answered_hz,
    frame_parts,
    inference_hz,
    inference_ms,
    model_inputs,
    play,
)
from ops.processes.worker_process import Worker
from shared.models.repository import Repository
from shared.runlog.latency_table import PARTS
from shared.terminal_table import Table, result_table

_BARE = "bare inference"
_REMOTE, _ISOLATED = "round trip", "round trip, isolated engine"
_RATE = "rate_hz"
_VEHICLE = "vehicle"
_VEHICLE_PARTS = ("read", "demosaiced", "preprocessed", "encoded")

PlayInto = Callable[[Path], list[dict[str, str]]]  # Plays the frames; returns the rows of the log in a folder.


@dataclass(frozen=True, slots=True)
class OverheadPlan:
    """Settings of the comparison."""

    bag: Path = options.bag()
    models: Path = options.models()
    model: str = options.model()
    codec: str = options.codec()
    quality: int = options.number(85, 1, 100, "JPEG quality.")
    rounds: int = options.rounds(5)
    frames: int = options.frames(20)
    window: int = options.throughput_window()
    device: str = options.option("auto", show_default=True, help="Device of the engine.")
    broker_kind: str = options.broker()
    isolate: bool = options.option(
        default=False, is_flag=True, help="Also measure a worker with its engine in a separate process."
    )


def measure(plan: OverheadPlan, run: BenchRun) -> dict[str, Any]:
    """Compare the whole round trip with direct inference, in alternating rounds of the same frames."""
    settings = PlaybackSettings(plan.bag, plan.models, plan.model, plan.codec, plan.quality, plan.frames)
    model = run.enter_context(ModelLoader(Repository(plan.models)).open(plan.model))
    latency: dict[str, Callable[[int], Samples]] = {}
    throughput: dict[str, Callable[[int], Samples]] = {}
    for name, flags in {_REMOTE: (), **({_ISOLATED: ("--isolate",)} if plan.isolate else {})}.items():
        # One broker per worker: workers of one broker would share the frames.
        broker = run.enter_context(Broker.start(kind=plan.broker_kind))
        run.enter_context(Worker(broker.url, models=plan.models, model=plan.model, device=plan.device, flags=flags))
        played = partial(play, settings, broker.url)
        latency[name] = partial(_latency, played, run.folder / f"{name} latency")
        throughput[name] = partial(_throughput, partial(played, window=plan.window), run.folder / f"{name} throughput")
    model.warm_up()
    images = model_inputs(settings, model)
    latency[_BARE] = lambda _round: {TOTAL: inference_ms(model, images, plan.frames)}
    throughput[_BARE] = lambda _round: {_RATE: [inference_hz(model, images, plan.frames)]}
    comparisons = (
        compare(latency, plan.rounds, run.step, step="one frame at a time, "),
        compare(throughput, plan.rounds, run.step, step="throughput, "),
    )
    return {
        **_record(*comparisons, _REMOTE),
        "model": plan.model,
        "codec": plan.codec,
        "quality": plan.quality if plan.codec == "jpeg" else None,
        "window": plan.window,
        "broker": broker.description,
        "engine": model.describe(),
        **({"isolated": _record(*comparisons, _ISOLATED)} if plan.isolate else {}),
    }


def _latency(play_into: PlayInto, folder: Path, number: int) -> Samples:
    rows = play_into(folder / str(number))
    return {
        **frame_samples([frame_parts(row) for row in rows]),
        _VEHICLE: [sum(float(row[f"{part}_ms"]) for part in _VEHICLE_PARTS) for row in rows],
    }


def _throughput(play_into: PlayInto, folder: Path, number: int) -> Samples:
    return {_RATE: [answered_hz(play_into(folder / str(number)))]}


def _record(latency: Comparison, rates: Comparison, name: str) -> dict[str, Any]:
    overhead = latency.ratio(name, _BARE, TOTAL)
    throughput = rates.ratio(name, _BARE, _RATE, fmean)
    return {
        "overhead_ratio": overhead.value,
        "throughput_ratio": throughput.value,
        "samples": {
            "rounds": len(overhead.by_round),
            "remote": len(latency.samples(name, TOTAL)),
            "bare": len(latency.samples(_BARE, TOTAL)),
        },
        "spread": {
            "overhead_ratio_by_round": list(overhead.by_round),
            "throughput_ratio_by_round": list(throughput.by_round),
            "remote_ms": latency.spread(name, TOTAL),
            "bare_ms": latency.spread(_BARE, TOTAL),
            "remote_hz": rates.samples(name, _RATE),
            "bare_hz": rates.samples(_BARE, _RATE),
        },
        "overhead_ms": latency.spread(name, OVERHEAD),
        "vehicle_ms": latency.spread(name, _VEHICLE),
        "breakdown_ms": {str(part): latency.spread(name, part) for part in PARTS},
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
            rows.append((f"{name}{suffix}", values[name], span(values["spread"][f"{name}_by_round"]), source))
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
    yield spread_table("Milliseconds", {**totals, **result["breakdown_ms"]})


overhead = options.bench_command("overhead", OverheadPlan, measure, _tables)
