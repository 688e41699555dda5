"""What each way to run the shipped graph in TensorFlow costs, beside the way that Skylane's engine takes."""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, Self

import numpy as np

from bench.engines.tensorflow_variants import ENGINE, WAYS
from bench.harness.samples import spread
from bench.load.playback import BenchError
from cloud.models.engine_benchmark import turns
from cloud.models.repository import Repository
from cloud.models.warmup_images import pictures
from shared.runtime.machine import machine

_PICTURES = 4
_TOGETHER = 4  # Processes beside the engine's: each holds some hundred megabytes.
_PATIENCE = 10  # Times the limit that a way may take on the clock, whatever else the machine does.
_LOOK_S = 0.5
_MS_IN_S = 1e3


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    models: Path
    model: str = "road-small"
    rounds: int = 11
    ways: tuple[str, ...] = ()  # Empty: all.
    limit_s: float = 60.0  # Of processor time, for a way to be warm, and for each picture after that.


@dataclass(slots=True)
class Lap:
    """What the rounds of one way gave, and those of the engine beside it."""

    wall_ms: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)


class Runner(AbstractContextManager["Runner"]):
    """A way in a process of its own, ended when the block ends; several may warm up at once."""

    def __init__(self, name: str, plan: Plan, shown: Path, folder: Path) -> None:
        self.name = name
        self._limit_s = plan.limit_s
        self._begun_ns, self._spent_before_s = perf_counter_ns(), 0.0
        self._masks = folder / f"{list(WAYS).index(name)}.npy"
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the block.
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "bench.engines.tensorflow_child",
                name,
                plan.models,
                plan.model,
                shown,
                self._masks,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **WAYS[name].environment},
        )
        self._answered = b""
        self._last = "nothing was answered yet"

    def __exit__(self, *_: object) -> None:
        self.end()
        self._said.close()

    def end(self) -> None:
        """Kill it, if it runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def wait(self) -> Self:
        """Until it is warm.

        Raises:
            BenchError: it ended, or its time did; says how far it came.
        """
        while (line := self._line("to be warm")) != "ready":
            self._last = f"a picture took {float(line) / _MS_IN_S:.1f} s"
        return self

    def masks(self) -> Any:
        """Its masks of all pictures, uint8 N×H×W."""
        return np.load(self._masks)

    def run(self, picture: int) -> tuple[float, float]:
        """Milliseconds on the clock and of the processors for one picture.

        Raises:
            BenchError: as `wait`.
        """
        assert self._process.stdin is not None
        self._begun_ns, self._spent_before_s = perf_counter_ns(), self._spent_s()
        try:
            self._process.stdin.write(f"{picture}\n".encode())
        except BrokenPipeError as error:
            raise BenchError(f"{self.name}: {self._last_words()}") from error
        wall_ms, processor_ms = map(float, self._line("for a picture").split())
        return wall_ms, processor_ms

    def _line(self, purpose: str) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._answered:
            if not select.select([self._process.stdout], [], [], _LOOK_S)[0]:
                self._check(purpose)
                continue
            data = self._process.stdout.read(4096)
            if not data:
                raise BenchError(f"{self.name}: {self._last_words()}")
            self._answered += data
        line, _, self._answered = self._answered.partition(b"\n")
        return line.decode()

    def _check(self, purpose: str) -> None:
        """Whether it may go on. Its processor time counts, or else a busy machine would end what is quick."""
        spent_s = self._spent_s() - self._spent_before_s
        waited_s = (perf_counter_ns() - self._begun_ns) / 1e9
        if spent_s > self._limit_s or waited_s > _PATIENCE * self._limit_s:
            told = f"{spent_s:.0f} s of processor time in {waited_s:.0f} s were too few {purpose}"
            raise BenchError(f"{self.name}: given up: {told} ({self._last})")

    def _spent_s(self) -> float:
        """Seconds of processor time that it took so far."""
        try:
            told = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return self._spent_before_s  # It ended: its pipe tells.
        user, system = told.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _last_words(self) -> str:
        self._said.seek(0)
        last = [line for line in self._said.read().splitlines() if line.strip()][-1:]
        return "".join(last)[:200] or "ended without a word"


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Run all ways, a few at a time in turn with the engine; `on_step` is told before each. What `--json` prints.

    Raises:
        SkylaneError: there is no such model, or the engine itself cannot run it.
    """
    card = Repository(plan.models).card(plan.model)
    names = [name for name in plan.ways or WAYS if name != ENGINE]
    rows: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="skylane-bench-") as folder:
        shown = Path(folder) / "pictures.npy"
        np.save(shown, pictures(card.height, card.width, _PICTURES))
        for group in groups(names):
            on_step(f"of {len(names)} ways: {', '.join(group)}")
            with ExitStack() as opened:
                # The engine anew with each group, in its midst: which memory a process gets makes a third of its speed,
                # and the first of several gets another than those after it.
                middle = len(group) // 2
                started = [
                    opened.enter_context(Runner(name, plan, shown, Path(folder)))
                    for name in (*group[:middle], ENGINE, *group[middle:])
                ]
                engine = started.pop(middle)
                rows.update(_raced(plan, engine, started, failed))
    return {
        "model": plan.model,
        "sha256": card.sha256,
        "rounds": plan.rounds,
        "limit_s": plan.limit_s,
        "ways": rows,
        "failed": failed,
        "machine": machine(),
    }


def groups(names: Sequence[str]) -> list[list[str]]:
    """The ways that are run together: a few at a time, and those that compile at the end, away from the others."""
    quick = [name for name in names if not WAYS[name].compiles]
    compiled = [name for name in names if WAYS[name].compiles]
    parts = [quick[start : start + _TOGETHER] for start in range(0, len(quick), _TOGETHER)]
    return [*parts, *([compiled] if compiled else [])]


def _raced(plan: Plan, engine: Runner, started: list[Runner], failed: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The rows of those that got through; the reasons of the others go to `failed`."""
    runners = []
    for runner in started:
        try:
            runners.append(runner.wait())
        except BenchError as error:
            failed[runner.name] = str(error)
            runner.end()  # It would take the processor from the others.
    runners.insert(0, engine.wait())
    laps = {runner: Lap() for runner in runners}
    for number in range(plan.rounds):
        for runner in turns(runners, number):
            if runner.name in failed:
                continue
            try:
                wall_ms, processor_ms = runner.run(number % _PICTURES)
            except BenchError as error:
                if runner is engine:
                    raise
                failed[runner.name] = str(error)
                runner.end()
                continue
            laps[runner].wall_ms.append(wall_ms)
            laps[runner].processor_ms.append(processor_ms)
    truth = engine.masks()
    return {
        runner.name: _row(laps[runner], laps[engine], float(np.mean(runner.masks() == truth)))
        for runner in runners[1:]
        if runner.name not in failed
    }


def _row(lap: Lap, own: Lap, agreement: float) -> dict[str, Any]:
    return {
        "ms": spread(lap.wall_ms),
        "engine_ms": spread(own.wall_ms),
        "ratio": median(lap.wall_ms) / median(own.wall_ms),
        "ratio_of_least": min(lap.wall_ms) / min(own.wall_ms),
        "processor_ratio": median(lap.processor_ms) / median(own.processor_ms),
        "agreement": agreement,
    }
