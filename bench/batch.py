"""`python -m bench batch`: what a batch over a library of bags costs beside its inference.

The candidates are the executors, and the engine alone in as many processes: they call the model directly with prepared
frames, and do nothing else.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench import harness
from bench.harness import BenchRun, Comparison, Samples
from cloud.models.opening import open_model
from ops.batch.executor import EXECUTORS, BagOutcome, BagProgress
from ops.batch.executors.local import process_count
from ops.batch.frames import PreparedFrame
from ops.batch.library import Library, scan
from ops.batch.plan import BatchPlan
from ops.batch.run import run_batch
from ops.batch.settings import BatchSettings
from ops.batch.steps import decode_bag
from ops.processes.child import BenchError, Child, serve
from rosbag_tools.drive.recording import SEED, sample_bag
from shared.flags import WholeRange
from shared.runtime import memory
from shared.runtime.machine import usable_cores
from shared.terminal_table import Table, result_table

BARE, BARE_ALONE = "engine", "engine, one process"
_HZ, _CPU_MS = "hz", "cpu_ms"  # Frames per second, and processor time per frame of all processes.
_TARGETS = {"local": (BARE, 0.93), "ray": ("local", 0.95)}  # By executor: the candidate to divide by, the least ratio.
_LIBRARIES = ("ray", "pyarrow", "rosbags", "tensorflow")
_BARE_IMAGES = 8


@dataclass(frozen=True, slots=True)
class BatchBenchPlan:
    """Settings of the benchmark."""

    models: Path = harness.models()
    model: str = harness.model()
    engine: str | None = harness.engine()
    executors: tuple[str, ...] = harness.choices(
        EXECUTORS, (), "Executor to measure (repeatable). [all that are installed]", "--executor"
    )
    processes: int | None = harness.option(
        type=WholeRange(1, 1024), help="Processes of the local executor and of the engine alone."
    )
    threads: int = harness.number(1, 1, 64, "Threads of the engine in each process.")
    bags: int = harness.number(4, 1, 1000, "Bags of the library.")
    frames: int = harness.frames(40, text="Frames of each bag.")
    rounds: int = harness.rounds(3, 100)


def measure(plan: BatchBenchPlan, run: BenchRun) -> dict[str, Any]:
    """Compare `skylane batch` with the engine alone: frames per second on the same cores, in alternating rounds.

    A batch is measured from the first frame of its last process until one of them has no more bags, so that loading the
    model does not count: it takes the same seconds for any library.
    """
    settings = BatchSettings(
        library=_drives(run, plan.bags, plan.frames),
        out=run.folder / "out",
        model=plan.model,
        repository=plan.models,
        engine=plan.engine,
        processes=plan.processes,
        threads=plan.threads,
    )
    processes = min(process_count(settings), plan.bags)
    settings = settings.model_copy(update={"processes": processes})
    candidates: dict[str, Callable[[int], Samples]] = {}
    alone = settings.model_copy(update={"threads": usable_cores()})
    for name, given, count in ((BARE, settings, processes), (BARE_ALONE, alone, 1)):
        run.step(name)
        candidates[name] = _bare(given, count, plan.frames, run)
    for name in plan.executors or EXECUTORS:
        candidates[name] = partial(_batch, settings.model_copy(update={"executor": name}), run.folder)
    comparison = harness.compare(candidates, plan.rounds, run.step, may_fail=set(EXECUTORS) - {"local"})
    return {
        "settings": {**harness.plan_record(plan), "processes": processes},
        "versions": {name: _version(name) for name in _LIBRARIES},
        "medians": {name: comparison.medians(name) for name in comparison.names},
        "ratios": _ratios(comparison),
        "failed": comparison.failed,
    }


def _drives(run: BenchRun, bags: int, frames: int) -> Path:
    """Fills a folder with different drives, which are rendered once and linked."""
    folder = run.folder / "library"
    for number in range(bags):
        run.step(f"drive {number + 1} of {bags}")
        shutil.copytree(sample_bag(frames, seed=SEED + number), folder / f"drive-{number}", copy_function=_link)
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # Another file system.
        shutil.copyfile(source, target)


def _bare(settings: BatchSettings, processes: int, frames: int, run: BenchRun) -> Callable[[int], Samples]:
    """Returns the turn of the engine alone: processes that infer at the same time, each `frames` frames."""
    values = {"settings": settings.model_dump_json(exclude_unset=True)}
    children = [run.enter_context(Child(__name__, values)) for _ in range(processes)]
    for child in children:
        child.wait()

    def turn(_: int) -> Samples:
        begin_s = _cpu_s()
        with ThreadPoolExecutor(processes) as threads:
            seconds = [float(each) for each in threads.map(lambda child: child.ask(frames), children)]
        cpu_ms = (_cpu_s() - begin_s) * 1e3
        return {_HZ: [sum(frames / each for each in seconds)], _CPU_MS: [cpu_ms / (frames * processes)]}

    return turn


def start(settings: str) -> Callable[[Any], float]:
    """Loads the model in a child process; returns the function that infers a number of frames and returns the seconds."""
    memory.retain()
    parsed = BatchSettings.model_validate_json(settings)
    model = open_model(parsed.stored_model(), parsed.chosen_engine(), parsed.placement(), max_batch=1)
    model.warm_up()
    bag = scan(parsed.library, Path(parsed.out)).bags[0]
    with closing(decode_bag(bag, parsed)) as items:
        images = [item.image[None] for item in islice(items, _BARE_IMAGES) if isinstance(item, PreparedFrame)]

    def infer(frames: int) -> float:
        begin_s = time.perf_counter()
        for number in range(frames):
            model.predict(images[number % len(images)])
        return time.perf_counter() - begin_s

    return infer


def _batch(settings: BatchSettings, folder: Path, number: int) -> Samples:
    """Takes the turn of an executor: a whole batch into a new folder."""
    # Ray reports the frames of one bag after the other, whichever of its processes did them.
    watcher = _Stopwatch((settings.processes or 1) if settings.executor == "local" else 1)
    result = run_batch(settings.model_copy(update={"out": folder / f"{settings.executor}-{number}"}), watcher)
    if result.failed:
        raise BenchError(f"{settings.executor}: {next(iter(result.failed.values()))}")
    return watcher.samples()


class _Stopwatch:
    """Times a batch while all of its processes have work; a BatchWatcher."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._frames: dict[str, int] = {}
        self._left = 0
        self._readings: list[tuple[float, float, int]] = []  # Time, processor time and frames at begin and end.

    def begin(self, library: Library, planned: BatchPlan) -> None:
        """See BatchWatcher."""
        del library
        self._left = len(planned.pending)

    def advance(self, progress: BagProgress) -> None:
        """See BatchWatcher."""
        self._frames[progress.bag] = progress.frames
        if not self._readings and len(self._frames) >= self._processes:
            self._read()

    def end(self, outcome: BagOutcome) -> None:
        """See BatchWatcher."""
        self._frames[outcome.bag] = outcome.frames
        self._left -= 1
        if len(self._readings) == 1 and self._left < self._processes:
            self._read()

    def samples(self) -> Samples:
        """Returns the frames per second, and the processor time per frame."""
        if len(self._readings) < 2:  # Begin and end
            raise BenchError("the batch ended before all of its processes had begun: give more --bags or --frames")
        time_s, cpu_s, frames = (end - begin for begin, end in zip(*self._readings, strict=True))
        return {_HZ: [frames / time_s], _CPU_MS: [cpu_s * 1e3 / frames]}

    def _read(self) -> None:
        self._readings.append((time.perf_counter(), _cpu_s(), sum(self._frames.values())))


def _cpu_s() -> float:
    """Returns the processor time of this process and of its living children."""
    own = psutil.Process()
    return harness.processor_s([own.pid, *(child.pid for child in own.children(recursive=True))])


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


def _version(name: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(name)
    return None


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
        yield (
            f"{name}: {harness.span(by_round)} by round; "
            f"by processor time {median(by_cpu):.3f} ({harness.span(by_cpu)})"
        )
    for name, (reference, target) in _TARGETS.items():
        if (ratio := result["ratios"].get(f"{name} / {reference}")) is not None:
            yield harness.target_line(f"{name} / {reference}", ratio["hz"]["by_round"], target)
    yield from (f"{name}: failed {reason}" for name, reason in result["failed"].items())
    yield ", ".join(f"{name} {found}" for name, found in result["versions"].items() if found)


batch = harness.bench_command("batch", BatchBenchPlan, measure, _tables)

if __name__ == "__main__":
    serve(start)
