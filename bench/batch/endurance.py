"""A batch under random kills, and its memory for few and many bags."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.batch.library import digest, drives
from ops.batch.run import RECORD_NAME
from ops.batch.settings import BatchSettings
from ops.processes.child import BenchError
from ops.processes.environment import BenchRun
from rosbag_tools.drive.recording import SEED

_COMMAND_SHARE = 0.3  # Share of the kills that hit the command itself; the others hit one of its processes.
_PAUSE_S = (0.5, 6.0)  # Range of the time between two kills: shorter and longer than loading the model.
_FEW_BAGS, _SMALL_FRAMES = 5, 10
_SAMPLE_S = 0.2
_PATIENCE_RUNS = 200


def kill_record(settings: BatchSettings, kills: int, run: BenchRun) -> dict[str, Any]:
    """Kills random processes with SIGKILL, and starts the command again until it is complete; compares the results.

    If the batch completes before all kills, it begins anew.

    Raises:
        BenchError: it does not complete.
    """
    calm = run.folder / "calm"
    _run_calm(settings, calm)
    expected = digest(calm)
    source = random.Random(SEED)
    killed, runs, rounds, equal = {"command": 0, "process": 0}, 0, 0, 0
    while sum(killed.values()) < kills:
        out = run.folder / f"killed-{rounds}"
        rounds += 1
        for _ in range(_PATIENCE_RUNS):
            run.step(f"kill {sum(killed.values()) + 1} of {kills}")
            runs += 1
            if _run_killed(settings, out, kills, killed, source):
                break
        else:
            raise BenchError(f"a batch under kills is not complete after {_PATIENCE_RUNS} runs")
        equal += digest(out) == expected
    return {"kills": killed, "runs": runs, "rounds": rounds, "equal": equal}


def kill_tables(record: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields a line on the kills."""
    if record is not None:
        killed = record["kills"]
        yield (
            f"{killed['process']} processes and {killed['command']} commands killed, {record['runs']} runs until "
            f"{record['rounds']} batches were complete: {record['equal']} with the bytes of an undisturbed one"
        )


def memory_record(settings: BatchSettings, bags: int, run: BenchRun) -> dict[str, Any]:
    """Returns the peak memory of a batch, all processes together, for few and many small bags."""
    peaks = {}
    for count in (_FEW_BAGS, bags):
        folder = drives(run.folder / f"small-{count}", count, _SMALL_FRAMES, run.step, small=True)
        run.step(f"memory for {count} bags")
        small = settings.model_copy(update={"library": folder})
        peaks[str(count)] = _peak_mb(_start(small, run.folder / f"small-out-{count}"))
    return {"peak_mb": peaks}


def memory_tables(record: Mapping[str, Any] | None) -> Iterator[str]:
    """Yields a line on the memory."""
    if record is not None:
        peaks = ", ".join(f"{peak:.0f} MB for {bags} bags" for bags, peak in record["peak_mb"].items())
        yield f"peak memory of all processes: {peaks}"


def _start(settings: BatchSettings, out: Path) -> "subprocess.Popen[bytes]":
    flags = {
        "--model": settings.model,
        "--models": settings.repository,
        "--threads": settings.threads,
        "--processes": settings.processes,
        "--engine": settings.engine,
        "--out": out,
    }
    words = [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
    command = [sys.executable, "-P", "-m", "skylane", "batch", str(settings.library), *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run_calm(settings: BatchSettings, out: Path) -> None:
    if _start(settings, out).wait():
        raise BenchError("an undisturbed batch failed: run `skylane batch` to see why")


def _run_killed(settings: BatchSettings, out: Path, kills: int, killed: dict[str, int], source: random.Random) -> bool:
    """Runs a batch and kills until all kills are made; returns whether it was complete."""
    process = _start(settings, out)
    try:
        while process.poll() is None:
            if sum(killed.values()) >= kills:
                return process.wait() == 0
            with suppress(subprocess.TimeoutExpired):
                process.wait(source.uniform(*_PAUSE_S))
                continue
            workers = _workers(process.pid)
            if source.random() < _COMMAND_SHARE:
                process.kill()
                killed["command"] += 1
            elif workers:
                with suppress(psutil.NoSuchProcess):
                    source.choice(workers).kill()
                    killed["process"] += 1
        return process.wait() == 0 and (out / RECORD_NAME).is_file()
    finally:
        process.kill()
        process.wait()


def _workers(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [each for each in psutil.Process(pid).children() if "spawn_main" in " ".join(each.cmdline())]
    return []


def _peak_mb(process: "subprocess.Popen[bytes]") -> float:
    """Waits for a batch; returns the largest sum of the memory of its processes."""
    peak = 0
    while process.poll() is None:
        total = 0
        with suppress(psutil.NoSuchProcess):
            command = psutil.Process(process.pid)
            for each in (command, *command.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    total += each.memory_info().rss
        peak = max(peak, total)
        time.sleep(_SAMPLE_S)
    if process.returncode:
        raise BenchError("a batch of small bags failed: run `skylane batch` to see why")
    return peak / 1e6
