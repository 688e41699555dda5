"""Helpers for tests of studies: plans, synthetic logs of vehicles, and simulated sessions."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from analysis.study.measurement import RunResult
from analysis.study.scenarios import VehicleLoad
from analysis.study.study_plan import PlannedRun, StudyCell, StudyPlan, WorkerSetup, read_plan
from ops.study.session import RESOURCES
from shared.errors import SkylaneError
from shared.runlog.latency_log import LatencyRow, LogWriter, Outcome
from shared.runlog.run_manifest import write_manifest
from shared.stages import Stage
from tests.support.latency_rows import answered_row

ORIGIN_NS = 1_800_000_000_000_000_000
_MS = 1_000_000
_RESOURCES = """at_ns,node,pid,cpu_percent,rss_bytes,bytes_in,bytes_out,gpu_percent,gpu_memory_bytes,gpu_power_w
{before},worker/worker-1,1,,500000000,1,1,,,
{before},vehicle/vehicle-1,2,,100000000,1,1,,,
{before},broker,3,,9000000,1,1,,,
{at},worker/worker-1,1,150,500000000,1,1,,,
{at},vehicle/vehicle-1,2,20,100000000,1,1,,,
{at},broker,3,5,9000000,1,1,,,
"""


def plan_file(folder: Path, **document: Any) -> Path:
    """Writes the file of a study."""
    path = folder / "study-file.yaml"
    path.write_text(yaml.safe_dump({"name": "tested", **document}), encoding="utf-8")
    return path


def plan_of(folder: Path, **document: Any) -> StudyPlan:
    """Reads a plan from a file, without pauses between runs."""
    return read_plan(plan_file(folder, cool_down_s=0, **document), folder / "no-models")


def write_run(
    folder: Path,
    due_ms: Sequence[float],
    total_ms: Sequence[float | None],
    *,
    session: str = "s1",
    reused: Collection[int] = (),
) -> None:
    """Writes a vehicle's run from the due time and the total of each frame; a total of None means dropped.

    The frames `reused` get the result of the first frame without being sent.
    """
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
                log.close(LatencyRow(**facts, outcome=Outcome.DROPPED, reason="window", edge_times={Stage.DUE: due_ns}))
                continue
            if sequence in reused:
                edge = {Stage.DUE: due_ns, Stage.GATED: due_ns + round(took * _MS)}
                reuse = LatencyRow(
                    **facts, outcome=Outcome.REUSED, edge_times=edge, gate_distance=1.0, reused_sequence=0
                )
                log.close(reuse)
                continue
            log.close(answered_row(due_ns, round(took * _MS), **facts))
    manifest = {"session": session, "model": {"sha256": "a" * 64}, "source": {"sha256": "b" * 64}, "commit": "c0ffee"}
    write_manifest(folder, {**manifest, "state": "complete", "host": {"processor": "p", "cores": 2, "python": "3"}})


class SimulatedSession:
    """Vehicles in a closed loop, with one frame in flight each, that share a worker with `service_ms` per frame."""

    broker = "simulated"

    def __init__(self, service_ms: Callable[[StudyCell], float], played: list[tuple[str, int]]) -> None:
        self._service_ms = service_ms
        self._played = played

    def play(self, cell: StudyCell, load: VehicleLoad, folder: Path) -> None:
        """Writes the logs of the vehicles."""
        self._played.append((cell.name, load.seed))
        took = self._service_ms(cell) * load.vehicles
        due = [number * took for number in range(load.frames)]
        for number in range(1, load.vehicles + 1):
            write_run(folder / f"vehicle-{number}", due, [took] * load.frames)
        (folder / RESOURCES).write_text(
            _RESOURCES.format(before=ORIGIN_NS, at=ORIGIN_NS + round(due[-1] * _MS)), encoding="utf-8"
        )


class BrokenError(SkylaneError):
    """An error while a cell is played."""


class SimulatedSessions:
    """Opens simulated sessions and records setups, cells and seeds."""

    def __init__(self, service_ms: Callable[[StudyCell], float] = lambda _: 10.0) -> None:
        self.opened: list[WorkerSetup] = []
        self.played: list[tuple[str, int]] = []
        self._service_ms = service_ms

    @contextmanager
    def open(self, setup: WorkerSetup) -> Iterator[SimulatedSession]:
        """Opens a session of a setup."""
        self.opened.append(setup)
        yield SimulatedSession(self._service_ms, self.played)


class RecordingListener:
    """A ProgressListener that records the results."""

    def __init__(self) -> None:
        self.results: list[RunResult] = []

    def run_started(self, run: PlannedRun, step: str) -> None:
        """See ProgressListener."""

    def run_finished(self, run: PlannedRun, result: RunResult) -> None:  # noqa: ARG002 (required by the protocol)
        """See ProgressListener."""
        self.results.append(result)
