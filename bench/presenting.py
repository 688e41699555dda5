"""`skylane bench presenting`: what a presenter costs the vehicle beside which it runs.

Rounds alternate between a vehicle without a presenter and one with each; all play the same frames at the camera's rate to
a worker that answers in a fixed time.
"""

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import harness
from bench.harness import TOTAL, BenchRun, Samples
from edge.presenting.presenter import PRESENTERS
from ops.broker.broker import Broker
from ops.processes.child import BenchError, cli_flags
from ops.processes.fixed_time import answers_file
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from ops.processes.playback import PlaybackSettings
from ops.processes.vehicle_process import VehicleProcess
from shared.runlog.latency_log import Outcome
from shared.runlog.presented_log import OutputOrigin, read_presented
from shared.terminal_table import Table, result_table

_NONE = "no presenter"
_SENT, _PROCESSOR, _PRESENTER, _SHOWN = "sent", "processor", "presenter", "shown"
_ENDS = {_SENT: "sent", TOTAL: "result"}
_WARM_UP_FRAMES = 10  # Until imports, buffers and connections have settled.


@dataclass(frozen=True, slots=True)
class PresentingPlan:
    """Settings of the comparison."""

    bag: Path = harness.bag(drive_frames=40)
    models: Path = harness.models()
    model: str = harness.model()
    local_model: str = harness.option("road-tiny", show_default=True, help="Model on the vehicle, for fuse.")
    presenters: tuple[str, ...] = harness.choices(
        PRESENTERS, tuple(PRESENTERS), "Presenter to measure (repeatable). [all]", "--presenter"
    )
    codec: str = harness.codec()
    rounds: int = harness.rounds(5)
    frames: int = harness.frames(100, 20)
    rate_hz: float = harness.number(10.0, 0.1, 240.0, "Frames per second of the camera.")
    worker_ms: float = harness.number(100.0, 0.0, 10_000.0, "Time of an answer.")


def measure(plan: PresentingPlan, run: BenchRun) -> dict[str, Any]:
    """Compare a vehicle without a presenter with one that holds, warps or fuses: latency of its frames and processor time."""
    settings = PlaybackSettings(plan.bag, plan.models, plan.model, plan.codec, frames=plan.frames)
    run.step("preparing the answers")
    answers = answers_file(settings, run.folder)
    broker = run.enter_context(Broker.start())
    worker = NullWorkerSettings(model=plan.model, models=plan.models, think_ms=plan.worker_ms, answers=(answers,))
    run.enter_context(NullWorkerProcess(broker.url, worker))
    arrivals = {"arrivals": "uniform", "arrival_rate": plan.rate_hz}
    common = {"broker": broker.url, "model": plan.model, "codec": plan.codec, "no_sinks": True, "loop": True}
    flags = cli_flags(**common, frames=plan.frames, **arrivals)
    candidates = {
        name: partial(_play, plan.bag, run.folder / name, [*flags, *_presenting(name, plan)])
        for name in (_NONE, *plan.presenters)
    }
    compared = harness.compare(candidates, plan.rounds, run.step)
    return {
        "rounds": plan.rounds,
        "frames": plan.frames,
        "rate_hz": plan.rate_hz,
        "model": plan.model,
        "codec": plan.codec,
        "broker": broker.description,
        "spread_ms": {name: {each: compared.spread(name, each) for each in (_SENT, TOTAL)} for name in candidates},
        "presenters": {
            name: {
                "sent_ratio": compared.ratio(name, _NONE, _SENT).record(),
                "total_ratio": compared.ratio(name, _NONE, TOTAL).record(),
                "presenter_ms": compared.spread(name, _PRESENTER),
                "shown_percent": compared.median(name, _SHOWN),
                "processor_ms": compared.median(name, _PROCESSOR) - compared.median(_NONE, _PROCESSOR),
            }
            for name in plan.presenters
        },
    }


def _presenting(name: str, plan: PresentingPlan) -> list[str]:
    """Returns the flags of a vehicle with a presenter."""
    if name == _NONE:
        return []
    local = ["--local-model", plan.local_model, "--models", str(plan.models)] if PRESENTERS[name].needs_local else []
    return ["--present", name, *local]


def _play(source: Path, folder: Path, flags: list[str], number: int) -> Samples:
    """Plays the frames through a vehicle in a child process; returns the samples of its frames without the warm-up.

    Raises:
        BenchError: no frame was answered.
        VehicleError: the vehicle failed.
    """
    before_s = _processor_s()
    with VehicleProcess(source, folder / str(number), flags) as vehicle:
        vehicle.wait()
        vehicle.end()
    processor_s = _processor_s() - before_s
    rows = [row for row in vehicle.rows(Outcome.ANSWERED) if int(row["sequence"]) >= _WARM_UP_FRAMES]
    if not rows:
        raise BenchError(f"no frame was answered: {vehicle.log_tail}")
    samples = {
        _SENT: [(int(row["t_sent_ns"]) - int(row["t_due_ns"])) / 1e6 for row in rows],
        TOTAL: [float(row["total_ms"]) for row in rows],
        _PROCESSOR: [1e3 * processor_s / len(vehicle.rows())],
    }
    if "--present" in flags:
        ticks = [row for row in read_presented(vehicle.folder) if row.tick >= _WARM_UP_FRAMES]
        samples[_PRESENTER] = [row.processing_ns / 1e6 for row in ticks if row.processing_ns is not None]
        samples[_SHOWN] = [100 * sum(row.origin is not OutputOrigin.NONE for row in ticks) / len(ticks)]
    return samples


def _processor_s() -> float:
    """Returns the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    rows = []
    for name, each in result["presenters"].items():
        sent, total = each["sent_ratio"], each["total_ratio"]
        cells = (sent["ratio"], harness.span(sent["by_round"]), total["ratio"], harness.span(total["by_round"]))
        rows.append((name, *cells, each["presenter_ms"]["median"], each["processor_ms"], each["shown_percent"]))
    yield result_table(
        f"{result['model']}, {result['codec']}, {result['rate_hz']:g} Hz, {result['rounds']} alternating rounds",
        {
            "presenter": "<",
            "due to sent, × without": ".3f",
            "by round": "<",
            "due to result, × without": ".3f",
            "by round ": "<",
            "presenter, ms a tick": ".1f",
            "processor, ms a frame more": ".1f",
            "ticks with an output, %": ".1f",
        },
        rows,
    )
    spreads = result["spread_ms"].items()
    yield harness.spread_table(
        "Milliseconds", {f"{name}: due to {end}": values[key] for name, values in spreads for key, end in _ENDS.items()}
    )


presenting = harness.bench_command("presenting", PresentingPlan, measure, _tables)
