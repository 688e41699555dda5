"""`skylane bench batch`: frames per second of a batch, relative to the engine alone, in alternating rounds of one run."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from bench.batch.bare_engine import BareEngines
from bench.batch.endurance import kill_record, kill_tables, memory_record, memory_tables
from bench.batch.library import drives
from bench.harness import options
from bench.harness.comparison import Comparison, Samples, compare
from bench.harness.output import span, target_line
from ops.batch.executor import EXECUTORS, BagOutcome, BagProgress
from ops.batch.executors.local import process_count
from ops.batch.library import Library
from ops.batch.plan import BatchPlan
from ops.batch.run import run_batch
from ops.batch.settings import BatchSettings
from ops.processes.child import BenchError
from ops.processes.environment import BenchRun
from shared.flags import WholeRange
from shared.runtime.machine import usable_cores
from shared.terminal_table import Table, result_table

BARE, BARE_ALONE = "engine", "engine, one process"
_HZ, _CPU_MS = "hz", "cpu_ms"  # Frames per second, and processor time per frame of all processes.
_TARGETS = {"local": (BARE, 0.93), "ray": ("local", 0.95)}  # By executor: the candidate to divide by, the least ratio.
_LIBRARIES = ("ray", "pyarrow", "rosbags", "tensorflow")


@dataclass(frozen=True, slots=True)
class BatchBenchPlan:
    """Settings of the benchmark."""

    models: Path = options.models()
    model: str = options.model()
    engine: str | None = options.engine()
    executors: tuple[str, ...] = options.choices(
        EXECUTORS, (), "Executor to measure (repeatable). [all that are installed]", "--executor"
    )
    processes: int | None = options.option(
        type=WholeRange(1, 1024), help="Processes of the local executor and of the engine alone."
    )
    threads: int = options.number(1, 1, 64, "Threads of the engine in each process.")
    bags: int = options.number(4, 1, 1000, "Bags of the library.")
    frames: int = options.frames(40, text="Frames of each bag.")
    rounds: int = options.rounds(3, 100)
    kills: int = options.number(0, 0, 1000, "Also kill so many random processes, and compare the results. [0: do not]")
    memory_bags: int = options.number(0, 0, 1000, "Also compare the memory for 5 and so many small bags. [0: do not]")


def measure(plan: BatchBenchPlan, run: BenchRun) -> dict[str, Any]:
    """Compare `skylane batch` with the engine alone: frames per second on the same cores, in alternating rounds.

    A batch is measured from the first frame of its last process until one of them has no more bags, so that loading the
    model does not count: it takes the same seconds for any library.
    """
    library = drives(run.folder / "library", plan.bags, plan.frames, run.step)
    settings = _settings(plan, library, run.folder)
    processes = min(process_count(settings), plan.bags)
    settings = settings.model_copy(update={"processes": processes})
    candidates: dict[str, Callable[[int], Samples]] = {}
    alone = settings.model_copy(update={"threads": usable_cores()})
    for name, given, count in ((BARE, settings, processes), (BARE_ALONE, alone, 1)):
        run.step(name)
        candidates[name] = _bare(BareEngines(given, count, run), plan.frames)
    for name in plan.executors or EXECUTORS:
        candidates[name] = _batch(settings.model_copy(update={"executor": name}), run)
    comparison = compare(candidates, plan.rounds, run.step, may_fail=set(EXECUTORS) - {"local"})
    result = {
        "settings": {**asdict(plan), "models": str(plan.models), "processes": processes},
        "versions": {name: _version(name) for name in _LIBRARIES},
        "medians": {name: comparison.medians(name) for name in comparison.names},
        "ratios": _ratios(comparison),
        "failed": comparison.failed,
    }
    if plan.kills:
        result["kills"] = kill_record(settings, plan.kills, run)
    if plan.memory_bags:
        result["memory"] = memory_record(settings, plan.memory_bags, run)
    return result


def _settings(plan: BatchBenchPlan, library: Path, folder: Path) -> BatchSettings:
    given = {"engine": plan.engine, "processes": plan.processes, "threads": plan.threads}
    return BatchSettings.model_validate(
        {
            "library": library,
            "out": folder / "out",
            "model": plan.model,
            "repository": plan.models,
            **{key: value for key, value in given.items() if value is not None},
        }
    )


def _bare(engines: BareEngines, frames: int) -> Callable[[int], Samples]:
    """Returns the turn of the engine alone."""

    def turn(_: int) -> Samples:
        begin_s = _cpu_s()
        hz = engines.measure_hz(frames)
        return {_HZ: [hz], _CPU_MS: [(_cpu_s() - begin_s) * 1e3 / (frames * engines.count)]}

    return turn


def _batch(settings: BatchSettings, run: BenchRun) -> Callable[[int], Samples]:
    """Returns the turn of an executor: a whole batch into a new folder."""

    def turn(number: int) -> Samples:
        out = run.folder / f"{settings.executor}-{number}"
        # Ray reports the frames of one bag after the other, whichever of its processes did them.
        processes = (settings.processes or 1) if settings.executor == "local" else 1
        watcher = _Stopwatch(processes)
        result = run_batch(settings.model_copy(update={"out": out}), watcher)
        if result.failed:
            raise BenchError(f"{settings.executor}: {next(iter(result.failed.values()))}")
        return watcher.samples()

    return turn


class _Reading(NamedTuple):
    """A moment of a batch."""

    time_s: float
    cpu_s: float
    frames: int


class _Stopwatch:
    """Times a batch while all of its processes have work."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._frames: dict[str, int] = {}
        self._left = 0
        self._begin: _Reading | None = None
        self._end: _Reading | None = None

    def begin(self, library: Library, planned: BatchPlan) -> None:
        """See BatchWatcher."""
        del library
        self._left = len(planned.pending)

    def advance(self, progress: BagProgress) -> None:
        """See BatchWatcher."""
        self._frames[progress.bag] = progress.frames
        if self._begin is None and len(self._frames) >= self._processes:
            self._begin = self._now()

    def end(self, outcome: BagOutcome) -> None:
        """See BatchWatcher."""
        self._frames[outcome.bag] = outcome.frames
        self._left -= 1
        if self._end is None and self._left < self._processes:
            self._end = self._now()

    def samples(self) -> Samples:
        """Returns the frames per second, and the processor time per frame."""
        if self._begin is None or self._end is None:
            raise BenchError("the batch ended before all of its processes had begun: give more --bags or --frames")
        took = [end - begin for begin, end in zip(self._begin, self._end, strict=True)]
        time_s, cpu_s, frames = took
        return {_HZ: [frames / time_s], _CPU_MS: [cpu_s * 1e3 / frames]}

    def _now(self) -> _Reading:
        return _Reading(time.perf_counter(), _cpu_s(), sum(self._frames.values()))


def _cpu_s() -> float:
    """Returns the processor time of this process and of its living children."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system
    return total


def _ratios(comparison: Comparison) -> dict[str, Any]:
    pairs = [(name, reference) for name, (reference, _) in _TARGETS.items()] + [("local", BARE_ALONE)]
    return {
        f"{name} / {reference}": {
            "hz": comparison.ratio(name, reference, _HZ).record(),
            "cpu": comparison.ratio(reference, name, _CPU_MS).record(),
        }
        for name, reference in pairs
        if {name, reference} <= set(comparison.names)
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    settings = result["settings"]
    split = f"{settings['processes']} processes × {settings['threads']} threads"
    rows = [
        (name, split if name != BARE_ALONE else "1 process, all cores", values[_HZ], values[_CPU_MS])
        for name, values in result["medians"].items()
    ]
    title = f"{settings['model']}: {settings['bags']} bags of {settings['frames']} frames, {settings['rounds']} rounds"
    yield result_table(title, {"what": "<", "on": "<", "frames/s": ".2f", "CPU ms a frame": ".1f"}, rows)
    for name, ratio in result["ratios"].items():
        by_round, by_cpu = ratio["hz"]["by_round"], ratio["cpu"]["by_round"]
        yield f"{name}: {span(by_round)} by round; by processor time {median(by_cpu):.3f} ({span(by_cpu)})"
    for name, (reference, target) in _TARGETS.items():
        if (ratio := result["ratios"].get(f"{name} / {reference}")) is not None:
            yield target_line(f"{name} / {reference}", ratio["hz"]["by_round"], target)
    yield from (f"{name}: failed {reason}" for name, reason in result["failed"].items())
    yield from kill_tables(result.get("kills"))
    yield from memory_tables(result.get("memory"))
    yield ", ".join(f"{name} {found}" for name, found in result["versions"].items() if found)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


batch = options.bench_command("batch", BatchBenchPlan, measure, _tables)
