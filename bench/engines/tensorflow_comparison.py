"""`skylane bench tensorflow`: compares variants of running a frozen graph in TensorFlow with Skylane's engine."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import psutil

from bench.engines.tensorflow_variants import ENGINE, ENGINE_AGAIN, VARIANTS
from bench.harness import options
from bench.harness.comparison import Comparison, Samples, compare
from ops.processes.child import BenchError, Child, ChildTimeoutError
from ops.processes.environment import BenchRun
from shared.inference.model import warmup_images
from shared.models.repository import Repository
from shared.terminal_table import Table, result_table

_IMAGES = 4
_GROUP_SIZE = 4  # Processes besides the engine's; each uses some hundred megabytes.
_WALL_FACTOR = 10  # Limit on wall time divided by the limit on processor time, for a busy machine.
_POLL_S = 0.5
_WALL, _PROCESSOR = "wall_ms", "processor_ms"


@dataclass(frozen=True, slots=True)
class TensorFlowPlan:
    """Settings of the comparison."""

    models: Path = options.models()
    model: str = options.model()
    rounds: int = options.rounds(11)
    variants: tuple[str, ...] = options.choices(
        VARIANTS, (), "Variant to measure (repeatable). [all]", "--variant", old="--way"
    )
    limit_s: float = options.number(
        60.0,
        1.0,
        None,
        "Seconds of processor time for the warm-up of a variant, and for each image; a slower variant is left out.",
        flag="--limit",
    )


class VariantProcess(Child):
    """A variant in a child process, see `bench.engines.tensorflow_variants`; several may warm up at once."""

    def __init__(self, name: str, plan: TensorFlowPlan, images: Path, folder: Path) -> None:
        self._masks = folder / f"{list(VARIANTS).index(name)}.npy"
        self._limit_s = plan.limit_s
        self._begin_ns, self._used_before_s = perf_counter_ns(), 0.0
        self._last_image = "no image was completed"
        settings = {"name": name, "models": plan.models, "model": plan.model, "images": images, "masks": self._masks}
        super().__init__(
            "bench.engines.tensorflow_variants", settings, title=name, environment=VARIANTS[name].environment
        )

    def warm_up(self) -> None:
        """Waits until the variant is warm.

        Raises:
            BenchError: the process ended, or exceeded its time limit.
        """
        while (message := self._read_within_limit("to warm up")) != "ready":
            self._last_image = f"an image took {message / 1e3:.1f} s"

    def masks(self) -> Any:
        """Returns the masks of all images, uint8 N×H×W."""
        return np.load(self._masks)

    def run(self, number: int) -> Samples:
        """Infers one image, by the number of the round; returns wall time and processor time.

        Raises:
            BenchError: as `warm_up`; the process is killed, so that it does not slow down the others.
        """
        self._begin_ns, self._used_before_s = perf_counter_ns(), self._used_s()
        try:
            self.send(number % _IMAGES)
            wall_ms, processor_ms = self._read_within_limit("for an image")
        except BenchError:
            self.end()
            raise
        return {_WALL: [wall_ms], _PROCESSOR: [processor_ms]}

    def _read_within_limit(self, purpose: str) -> Any:
        """Returns the next message. Processor time is limited, because other processes may delay this one."""
        while True:
            try:
                return self.read(_POLL_S)
            except ChildTimeoutError:
                used_s = self._used_s() - self._used_before_s
                wall_s = (perf_counter_ns() - self._begin_ns) / 1e9
                if used_s > self._limit_s or wall_s > _WALL_FACTOR * self._limit_s:
                    times = f"{used_s:.0f} s of processor time in {wall_s:.0f} s"
                    raise BenchError(
                        f"{self.title}: stopped: {times} were not enough {purpose} ({self._last_image})"
                    ) from None

    def _used_s(self) -> float:
        """Processor time of all threads so far."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return self._used_before_s  # The process has ended; the next read reports it.
        return float(times.user + times.system)


def measure(plan: TensorFlowPlan, run: BenchRun) -> dict[str, Any]:
    """Compare variants of running a frozen graph in TensorFlow with Skylane's engine."""
    card = Repository(plan.models).find(plan.model).card()
    names = [name for name in plan.variants or VARIANTS if name != ENGINE]
    rows: dict[str, Any] = {}
    failed: dict[str, str] = {}
    images = run.folder / "images.npy"
    np.save(images, warmup_images(card.height, card.width, _IMAGES))
    for group in groups(names):
        run.step(f"starting {', '.join(group)} (of {len(names)} variants)")
        with ExitStack() as stack:
            # The engine restarts with each group, in its middle: its speed depends by a third on the memory it gets, and
            # the first process gets other memory than later ones.
            order = [*group[: len(group) // 2], ENGINE, *group[len(group) // 2 :]]
            started = {name: stack.enter_context(VariantProcess(name, plan, images, run.folder)) for name in order}
            rows |= _compare_group(plan, started, failed, run)
    return {
        "model": plan.model,
        "sha256": card.sha256,
        "rounds": plan.rounds,
        "limit_s": plan.limit_s,
        "variants": rows,
        "failed": failed,
    }


def groups(names: Sequence[str]) -> list[list[str]]:
    """Divides variants into groups that run together; those that are compiled form the last group."""
    quick = [name for name in names if not VARIANTS[name].is_compiled]
    compiled = [name for name in names if VARIANTS[name].is_compiled]
    parts = [quick[start : start + _GROUP_SIZE] for start in range(0, len(quick), _GROUP_SIZE)]
    return [*parts, *([compiled] if compiled else [])]


def _compare_group(
    plan: TensorFlowPlan, started: Mapping[str, VariantProcess], failed: dict[str, str], run: BenchRun
) -> dict[str, dict[str, Any]]:
    """Returns the rows of the variants that completed; the reasons of the others are added to `failed`."""
    warm = {}
    for name, process in started.items():
        try:
            process.warm_up()
        except BenchError as error:
            if name == ENGINE:
                raise
            failed[name] = str(error)
            process.end()
        else:
            warm[name] = process
    candidates = {name: process.run for name, process in warm.items()}
    comparison = compare(candidates, plan.rounds, run.step, may_fail=warm.keys() - {ENGINE})
    failed.update(comparison.failed)
    reference = warm[ENGINE].masks()
    return {
        name: _record(comparison, name, float(np.mean(warm[name].masks() == reference)))
        for name in comparison.names
        if name != ENGINE
    }


def _record(comparison: Comparison, name: str, agreement: float) -> dict[str, Any]:
    return {
        "ms": comparison.spread(name, _WALL),
        "engine_ms": comparison.spread(ENGINE, _WALL),
        "ratio": comparison.ratio(name, ENGINE, _WALL).value,
        "ratio_of_least": comparison.ratio(name, ENGINE, _WALL, min).value,
        "processor_ratio": comparison.ratio(name, ENGINE, _PROCESSOR).value,
        "agreement": agreement,
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    ratios = {"median": "ratio", "least": "ratio_of_least", "processor": "processor_ratio"}
    rows = sorted(result["variants"].items(), key=lambda item: float(item[1]["ratio"]))
    yield result_table(
        f"{result['model']}: time ÷ the engine's, {result['rounds']} rounds in turn",
        {"variant": "<", **dict.fromkeys(ratios, ".2f"), "labels": ".5%"},
        [(name, *(row[key] for key in ratios.values()), row["agreement"]) for name, row in rows],
        f"below 1: faster than the engine; labels: share equal to the engine's; {ENGINE_AGAIN}: the noise level",
    )
    for reason in result["failed"].values():
        yield f"left out: {reason}"


tensorflow = options.bench_command("tensorflow", TensorFlowPlan, measure, _tables)
