"""What a frame costs the vehicle, and whether the vehicle node's memory stays flat over many frames.

The vehicle node runs in a process of its own against a worker that answers at once, so that nothing but the vehicle,
the broker and the worker's own rooms is measured.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.harness.samples import spread
from bench.load.null_worker import MODEL, NullWorker, NullWorkerSettings
from bench.load.playback import BenchError
from shared.broker.broker import Broker
from shared.runlog.latency_log import Outcome, read_rows
from shared.runtime.machine import machine

PARTS = ("read", "demosaiced", "preprocessed", "encoded")
_SAMPLE_S = 0.25
_SETTLED = 0.2  # Of the run: imports, pools and queues have filled by then.


def measure(
    bag: Path, *, frames: int, codec: str, height: int, width: int, on_step: Callable[[str], None]
) -> dict[str, Any]:
    """Play `frames` frames of a bag, again and again, to a model of `height` × `width`.

    Raises:
        SkylaneError: the bag or the broker cannot be used, or the vehicle node failed.
    """
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
    """Run the vehicle node; returns its resident memory in MB, sampled while it ran."""
    arguments = [str(bag), "--broker", broker, "--model", MODEL, "--codec", codec, "--out", str(folder)]
    arguments += ["--frames", str(frames), "--loop", "--closed-loop", "--window", "1", "--no-sinks"]
    memory_mb = []
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,  # A pipe that nobody reads would stop a long run.
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
                process.wait(_SAMPLE_S)
            except subprocess.TimeoutExpired:
                continue
        log.seek(0)
        said = log.read().strip()
    if process.returncode:
        raise BenchError(f"the vehicle node failed: {said}")
    return memory_mb


def _memory(samples_mb: Sequence[float], frames: int) -> dict[str, float]:
    """Resident memory once settled: level, peak, and the slope of a line through it."""
    settled = np.asarray(samples_mb[round(len(samples_mb) * _SETTLED) : -1])
    if len(settled) < 3:  # noqa: PLR2004 (fewer points make no slope)
        raise BenchError("the run was too short to tell anything of memory: use more --frames")
    per_sample = np.polyfit(np.arange(len(settled)), settled, 1)[0]
    return {
        "median": float(np.median(settled)),
        "peak": float(settled.max()),
        "slope_per_1000_frames": float(per_sample * len(samples_mb) / frames * 1000),
    }
