"""What the tests of studies are made of: plans, logs of vehicles that never were, and a simulated session."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bench.study.execution.cell_run import Result
from bench.study.execution.runner import Run
from bench.study.execution.session import RESOURCES
from bench.study.plan.cell import Cell, WorkerSetup
from bench.study.plan.scenarios import Load
from bench.study.plan.study_plan import Plan, read_plan
from shared.clock import Offset
from shared.errors import SkylaneError
from shared.runlog.latency_log import LogWriter, Outcome, Row
from shared.runlog.run_manifest import write_manifest
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage

ORIGIN_NS = 1_800_000_000_000_000_000
_MS = 1_000_000
_STEP_NS = 1000  # Between two stamps of a node, but for the stage that takes the time.
_RESOURCES = """at_ns,node,pid,cpu_percent,rss_bytes,bytes_in,bytes_out,gpu_percent,gpu_memory_bytes,gpu_power_w
{before},worker/worker-1,1,,500000000,1,1,,,
{before},vehicle/vehicle-1,2,,100000000,1,1,,,
{before},broker,3,,9000000,1,1,,,
{at},worker/worker-1,1,150,500000000,1,1,,,
{at},vehicle/vehicle-1,2,20,100000000,1,1,,,
{at},broker,3,5,9000000,1,1,,,
"""


def plan_file(folder: Path, **document: Any) -> Path:
    """A study's file."""
    path = folder / "study-file.yaml"
    path.write_text(yaml.safe_dump({"name": "tested", **document}), encoding="utf-8")
    return path


def plan_of(folder: Path, **document: Any) -> Plan:
    """A plan as it is read from a file, with no wait between runs."""
    return read_plan(plan_file(folder, cool_down_s=0, **document), folder / "no-models")


def write_run(folder: Path, due_ms: Sequence[float], total_ms: Sequence[float | None], *, session: str = "s1") -> None:
    """A vehicle's run: when each frame fell due and how long it took, None where it was dropped."""
    with LogWriter(folder) as log:
        for sequence, (due, took) in enumerate(zip(due_ms, total_ms, strict=True)):
            due_ns = ORIGIN_NS + round(due * _MS)
            facts: dict[str, Any] = {
                "vehicle": folder.name,
                "camera": "c",
                "session": session,
                "sequence": sequence,
                "model": "m",
            }
            if took is None:
                log.close(Row(**facts, outcome=Outcome.DROPPED, reason="window", edge_times={Stage.DUE: due_ns}))
                continue
            edge = {stage: due_ns + place * _STEP_NS for place, stage in enumerate(EDGE_STAGES)}
            edge[Stage.MASK_DECODED] = due_ns + round(took * _MS)
            edge[Stage.RETURNED] = edge[Stage.MASK_DECODED] - _STEP_NS
            received_ns = edge[Stage.SENT] + _STEP_NS
            cloud = {stage: received_ns + place * _STEP_NS for place, stage in enumerate(CLOUD_STAGES)}
            log.close(
                Row(
                    **facts,
                    outcome=Outcome.ANSWERED,
                    attempts=1,
                    worker="worker-1",
                    batch_size=1,
                    bytes_up=1000,
                    bytes_down=100,
                    edge_times=edge,
                    cloud_times=cloud,
                    clock=Offset(0, 500),
                )
            )
    manifest = {"session": session, "model": {"sha256": "a" * 64}, "source": {"sha256": "b" * 64}, "commit": "c0ffee"}
    write_manifest(folder, {**manifest, "state": "complete", "host": {"processor": "p", "cores": 2, "python": "3"}})


class SimulatedSession:
    """Vehicles that take turns at a worker which needs `service_ms` a frame: closed loop, one frame in flight each."""

    broker = "simulated"

    def __init__(self, service_ms: Callable[[Cell], float], played: list[tuple[str, int]]) -> None:
        self._service_ms = service_ms
        self._played = played

    def play(self, cell: Cell, load: Load, folder: Path) -> None:
        """Write what the vehicles would have logged."""
        self._played.append((cell.name, load.seed))
        took = self._service_ms(cell) * load.vehicles
        due = [number * took for number in range(load.frames)]
        for number in range(1, load.vehicles + 1):
            write_run(folder / f"vehicle-{number}", due, [took] * load.frames)
        (folder / RESOURCES).write_text(
            _RESOURCES.format(before=ORIGIN_NS, at=ORIGIN_NS + round(due[-1] * _MS)), encoding="utf-8"
        )


class BrokenError(SkylaneError):
    """Something a cell met."""


class Sessions:
    """Opens simulated sessions, and remembers what was opened and played."""

    def __init__(self, service_ms: Callable[[Cell], float] = lambda _: 10.0) -> None:
        self.opened: list[WorkerSetup] = []
        self.played: list[tuple[str, int]] = []
        self._service_ms = service_ms

    @contextmanager
    def open(self, setup: WorkerSetup) -> Iterator[SimulatedSession]:
        """A session of a setup."""
        self.opened.append(setup)
        yield SimulatedSession(self._service_ms, self.played)


class Silent:
    """A watcher that only remembers the results."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    def begins(self, run: Run, step: str) -> None:
        """See Watcher."""

    def ended(self, run: Run, result: Result) -> None:  # noqa: ARG002 (the protocol's)
        """See Watcher."""
        self.results.append(result)
