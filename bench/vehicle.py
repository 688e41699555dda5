"""`skylane bench vehicle`: time and memory that frames cost the vehicle node, with a worker that replies at once.

The vehicle node runs in a child process, so that its memory is measured alone; only the round trip includes broker and worker.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from analysis.statistics.samples import spread
from bench import harness
from bench.harness import BenchRun
from ops.broker.broker import Broker
from ops.processes.child import BenchError, cli_flags
from ops.processes.null_worker import MODEL, NullWorkerProcess, NullWorkerSettings
from ops.study.fleet import Fleet
from shared.runlog.latency_log import Outcome, read_rows
from shared.terminal_table import Table

PARTS = ("read", "demosaiced", "preprocessed", "encoded")
_WARM_UP_SHARE = 0.2  # Share of the run until imports, pools and queues have their final size.


@dataclass(frozen=True, slots=True)
class VehiclePlan:
    """Settings of the benchmark."""

    bag: Path = harness.bag(drive_frames=40)
    codec: str = harness.codec()
    frames: int = harness.number(2000, 50, 1_000_000, "Number of frames.")
    height: int = harness.number(608, 16, 8192, "Height of the model's input.")
    width: int = harness.number(968, 16, 8192, "Width of the model's input.")


def measure(plan: VehiclePlan, run: BenchRun) -> dict[str, Any]:
    """Measure the vehicle's time per frame and its memory over many frames, with a worker that replies at once."""
    run.step("starting broker and worker")
    broker = run.enter_context(Broker.start())
    run.enter_context(NullWorkerProcess(broker.url, NullWorkerSettings(height=plan.height, width=plan.width)))
    run.step(f"{plan.frames} frames of {plan.bag}")
    options = {"broker": broker.url, "model": MODEL, "codec": plan.codec, "frames": plan.frames, "window": 1}
    flags = cli_flags(**options, loop=True, closed_loop=True)
    fleet = run.enter_context(Fleet(1, plan.bag, run.folder, [flags]))
    ((name, pid),) = fleet.pids.items()
    process, samples_mb = psutil.Process(pid), list[float]()

    def sample() -> None:
        with suppress(psutil.Error):
            samples_mb.append(process.memory_info().rss / 1e6)

    fleet.wait(math.inf, sample)
    rows = list(read_rows(run.folder / name))
    answered = [row for row in rows if row["outcome"] == Outcome.ANSWERED]
    if len(answered) != len(rows):
        raise BenchError(f"{len(rows) - len(answered)} of {len(rows)} frames were not answered")
    parts = {part: [float(row[f"{part}_ms"]) for row in answered] for part in PARTS}
    return {
        "frames": len(answered),
        "vehicle_ms": spread([sum(values) for values in zip(*parts.values(), strict=True)]),
        "parts_ms": {part: spread(values) for part, values in parts.items()},
        "journey_ms": spread([float(row["total_ms"]) for row in answered]),
        "memory_mb": _memory([size for size in samples_mb if size], plan.frames),
        "codec": plan.codec,
        "broker": broker.description,
    }


def _memory(samples_mb: Sequence[float], frames: int) -> dict[str, float]:
    """Median, peak and linear slope of the resident memory after the warm-up."""
    settled = np.asarray(samples_mb[round(len(samples_mb) * _WARM_UP_SHARE) : -1])
    if len(settled) < 3:  # noqa: PLR2004 (fewer points make no slope)
        raise BenchError("the run was too short to measure memory: use more --frames")
    per_sample = np.polyfit(np.arange(len(settled)), settled, 1)[0]
    return {
        "median": float(np.median(settled)),
        "peak": float(settled.max()),
        "slope_per_1000_frames": float(per_sample * len(samples_mb) / frames * 1000),
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    rows = {"vehicle: read to encoded": result["vehicle_ms"], **result["parts_ms"]}
    yield harness.spread_table("Milliseconds", {**rows, "whole round trip, no inference": result["journey_ms"]})
    memory = result["memory_mb"]
    yield (
        f"{result['frames']} frames as {result['codec']}; resident memory {memory['median']:.0f} MB, peak "
        f"{memory['peak']:.0f} MB, slope {memory['slope_per_1000_frames']:+.2f} MB per 1000 frames"
    )


vehicle = harness.bench_command("vehicle", VehiclePlan, measure, _tables)
