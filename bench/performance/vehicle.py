"""`skylane bench vehicle`: time and memory that frames cost the vehicle node, with a worker that replies at once.

The vehicle node runs in a child process, so that only the vehicle, the broker and the worker's queues are measured.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from bench.harness import options
from bench.harness.comparison import BenchError, OnStep
from bench.harness.environment import sample_bag
from bench.harness.output import progress, show, spread_table
from bench.harness.samples import spread
from bench.load.null_worker import MODEL, NullWorker, NullWorkerSettings
from shared.broker.broker import Broker
from shared.runlog.latency_log import Outcome, read_rows
from shared.runtime.machine import machine
from shared.terminal_table import Table

PARTS = ("read", "demosaiced", "preprocessed", "encoded")
_SOURCE_FRAMES = 40
_SAMPLE_INTERVAL_S = 0.25
_WARM_UP_SHARE = 0.2  # Share of the run until imports, pools and queues have their final size.


def measure(bag: Path, *, frames: int, codec: str, height: int, width: int, on_step: OnStep) -> dict[str, Any]:
    """Plays a bag in a loop to a model of `height` × `width`; returns the JSON output."""
    on_step("starting broker and worker")
    with ExitStack() as stack:
        broker = stack.enter_context(Broker.start())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-"))) / "run"
        stack.enter_context(NullWorker(broker.url, NullWorkerSettings(height=height, width=width)))
        on_step(f"{frames} frames of {bag}")
        memory_mb = _play(bag, broker.url, folder, frames, codec)
        rows = list(read_rows(folder))
        description = broker.description
    answered = [row for row in rows if row["outcome"] == Outcome.ANSWERED]
    if len(answered) != len(rows):
        raise BenchError(f"{len(rows) - len(answered)} of {len(rows)} frames were not answered")
    parts = {part: [float(row[f"{part}_ms"]) for row in answered] for part in PARTS}
    return {
        "frames": len(answered),
        "vehicle_ms": spread([sum(values) for values in zip(*parts.values(), strict=True)]),
        "parts_ms": {part: spread(values) for part, values in parts.items()},
        "journey_ms": spread([float(row["total_ms"]) for row in answered]),
        "memory_mb": _memory(memory_mb, frames),
        "codec": codec,
        "broker": description,
        "machine": machine(),
    }


def _play(bag: Path, broker: str, folder: Path, frames: int, codec: str) -> list[float]:
    """Runs the vehicle node; returns samples of its resident memory in MB."""
    arguments = [str(bag), "--broker", broker, "--model", MODEL, "--codec", codec, "--out", str(folder)]
    arguments += ["--frames", str(frames), "--loop", "--closed-loop", "--window", "1", "--no-sinks"]
    memory_mb = []
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,  # A pipe without a reader would block a long run.
        subprocess.Popen(
            [sys.executable, "-P", "-m", "skylane", "edge", "play", *arguments], stdout=subprocess.DEVNULL, stderr=log
        ) as process,
    ):
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                memory_mb.append(watched.memory_info().rss / 1e6)
            except psutil.NoSuchProcess:
                break
            try:
                process.wait(_SAMPLE_INTERVAL_S)
            except subprocess.TimeoutExpired:
                continue
        log.seek(0)
        log_text = log.read().strip()
    if process.returncode:
        raise BenchError(f"the vehicle node failed: {log_text}")
    return memory_mb


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


@click.command()
@options.bag
@options.codec
@options.number("--frames", 2000, 50, 1_000_000, "Number of frames.")
@options.number("--height", 608, 16, 8192, "Height of the model's input.")
@options.number("--width", 968, 16, 8192, "Width of the model's input.")
@options.json_flag
def vehicle(bag: Path | None, *, as_json: bool, **settings: Any) -> None:
    """Measure the vehicle's time per frame and its memory over many frames, with a worker that replies at once."""
    with progress() as on_step:
        result = measure(bag or sample_bag(_SOURCE_FRAMES), on_step=on_step, **settings)
    show(result, _tables(result), as_json=as_json)


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    rows = {"vehicle: read to encoded": result["vehicle_ms"], **result["parts_ms"]}
    yield spread_table("Milliseconds", {**rows, "whole round trip, no inference": result["journey_ms"]})
    memory = result["memory_mb"]
    yield (
        f"{result['frames']} frames as {result['codec']}; resident memory {memory['median']:.0f} MB, peak "
        f"{memory['peak']:.0f} MB, slope {memory['slope_per_1000_frames']:+.2f} MB per 1000 frames"
    )
