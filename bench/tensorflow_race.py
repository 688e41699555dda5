"""What each way to run the shipped graph in TensorFlow costs, beside the way that Skylane's engine takes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from bench.overhead import BenchError
from bench.spread import spread
from bench.tensorflow_ways import ENGINE, WAYS
from cloud.pictures import pictures
from cloud.repository import Repository
from shared.machine import machine

_PICTURES = 4
_TOGETHER = 4  # Processes beside the engine's: each holds some hundred megabytes.


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    models: Path
    model: str = "road-small"
    rounds: int = 15
    ways: tuple[str, ...] = ()  # Empty: all.


@dataclass(slots=True)
class Lap:
    """What the rounds of one way gave, and those of the engine beside it."""

    wall_ms: list[float] = field(default_factory=list)
    processor_ms: list[float] = field(default_factory=list)


class Runner(AbstractContextManager["Runner"]):
    """A way in a process of its own; warm when the block begins, ended when it ends."""

    def __init__(self, name: str, plan: Plan, shown: Path, folder: Path) -> None:
        self.name = name
        self._masks = folder / f"{list(WAYS).index(name)}.npy"
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the block.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.tensorflow_child", name, plan.models, plan.model, shown, self._masks],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **WAYS[name].environment},
        )

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def wait(self) -> Self:
        """Until it is warm.

        Raises:
            BenchError: it ended; its last line is told.
        """
        self._line()
        return self

    def masks(self) -> Any:
        """Its masks of all pictures, uint8 N×H×W."""
        return np.load(self._masks)

    def run(self, picture: int) -> tuple[float, float]:
        """Milliseconds on the clock and of the processors for one picture."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{picture}\n")
        self._process.stdin.flush()
        wall_ms, processor_ms = map(float, self._line().split())
        return wall_ms, processor_ms

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            last = [line for line in self._said.read().splitlines() if line.strip()][-1:]
            raise BenchError(f"{self.name}: {''.join(last)[:200] or 'ended without a word'}")
        return line


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
        for start in range(0, len(names), _TOGETHER):
            group = names[start : start + _TOGETHER]
            on_step(f"ways {start + 1} to {start + len(group)} of {len(names)}: {', '.join(group)}")
            rows.update(_raced(plan, group, shown, Path(folder), failed))
    return {
        "model": plan.model,
        "sha256": card.sha256,
        "rounds": plan.rounds,
        "ways": rows,
        "failed": failed,
        "machine": machine(),
    }


def _raced(
    plan: Plan, group: Sequence[str], shown: Path, folder: Path, failed: dict[str, str]
) -> dict[str, dict[str, Any]]:
    with Runner(ENGINE, plan, shown, folder) as engine:
        engine.wait()
        runners: list[Runner] = []
        try:
            for name in group:
                runners.append(Runner(name, plan, shown, folder))
                try:
                    runners[-1].wait()
                except BenchError as error:
                    failed[name] = str(error)
                    runners.pop().__exit__()
            laps = {runner: Lap() for runner in (engine, *runners)}
            for number in range(plan.rounds):
                for runner, lap in laps.items():
                    wall_ms, processor_ms = runner.run(number % _PICTURES)
                    lap.wall_ms.append(wall_ms)
                    lap.processor_ms.append(processor_ms)
            own, truth = laps[engine], engine.masks()
            return {runner.name: _row(laps[runner], own, float(np.mean(runner.masks() == truth))) for runner in runners}
        finally:
            for runner in runners:
                runner.__exit__()


def _row(lap: Lap, own: Lap, agreement: float) -> dict[str, Any]:
    return {
        "ms": spread(lap.wall_ms),
        "engine_ms": spread(own.wall_ms),
        "ratio": median(lap.wall_ms) / median(own.wall_ms),
        "ratio_of_least": min(lap.wall_ms) / min(own.wall_ms),
        "processor_ratio": median(lap.processor_ms) / median(own.processor_ms),
        "agreement": agreement,
    }
