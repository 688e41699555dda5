"""Runs a study in its random order and saves each result; a failed run does not stop the others.

A run plays a cell once, or searches for its capacity if the scenario asks for it.
"""

import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from analysis.study.accuracy import compare_masks
from analysis.study.measurement import (
    DONE,
    FAILED,
    SKIPPED,
    RunMeasurement,
    RunPart,
    RunResult,
    judge,
    measure,
    measures_every_frame,
    resource_usage,
    run_metrics,
    run_provenance,
    tail_latency,
)
from analysis.study.scenarios import (
    SCENARIOS,
    CapacitySettings,
    RunLength,
    ValidityRules,
    VehicleLoad,
    frame_counts,
)
from analysis.study.study_folder import StudyFolder
from analysis.study.study_plan import PlannedRun, StudyCell, StudyPlan, WorkerSetup, cells, ordered_groups, run_seed
from ops.study.sample_drives import source_of
from ops.study.session import RESOURCES, Session
from shared.errors import SkylaneError
from shared.files import write_file

_CHECK_DEVICES = """
import sys
from shared.inference.engine import DeviceError
from cloud.engines.tensorflow.runtime import choose_device
for device in sys.argv[1:]:
    try:
        choose_device(device)
        print()
    except DeviceError as error:
        print(" ".join(str(error).split()))
"""


class ProgressListener(Protocol):
    """Receives the progress of a study."""

    def run_started(self, run: PlannedRun, step: str) -> None:
        """A run, or a step of it, has started."""

    def run_finished(self, run: PlannedRun, result: RunResult) -> None:
        """A run has ended, and its result is saved."""


SessionOpener = Callable[[WorkerSetup], AbstractContextManager[Session]]


class StudyRunner:
    """Runs a study, or its pending runs."""

    def __init__(self, plan: StudyPlan, folder: StudyFolder, seed: int) -> None:
        self.plan = plan
        self.folder = folder
        self._seed = seed
        self._groups = ordered_groups(cells(plan), plan.repetitions, seed)

    @property
    def planned(self) -> list[PlannedRun]:
        """All runs in their order."""
        return [run for _, members in self._groups for run in members]

    @property
    def pending(self) -> list[PlannedRun]:
        """The runs that are not done.

        Raises:
            StudyError: A result cannot be read.
        """
        done = {run for run, result in self.results() if result.state == DONE}
        return [run for run in self.planned if run not in done]

    @property
    def done(self) -> int:
        """Number of runs that are done."""
        return len(self.planned) - len(self.pending)

    def results(self) -> list[tuple[PlannedRun, RunResult]]:
        """Returns the saved results in the order of the runs.

        Raises:
            StudyError: A result cannot be read.
        """
        loaded = ((run, self.folder.load_result(run.cell, run.repetition)) for run in self.planned)
        return [(run, result) for run, result in loaded if result is not None]

    def run(self, open_session: SessionOpener, missing: Mapping[str, str], listener: ProgressListener) -> None:
        """Runs all pending runs; runs on a device in `missing` are skipped with the given reason.

        Raises:
            SkylaneError: The folder cannot be written. A failed run is a result and raises nothing.
        """
        pending = set(self.pending)
        for setup, members in self._groups:
            runs = [run for run in members if run in pending]
            if reason := missing.get(setup.device):
                for run in runs:
                    self._save(run, RunResult({"state": SKIPPED, "reason": reason}), listener)
                continue
            self._run_group(setup, runs, open_session, listener)

    def _run_group(
        self, setup: WorkerSetup, runs: list[PlannedRun], open_session: SessionOpener, listener: ProgressListener
    ) -> None:
        """Runs the cells of one setup with the same workers; after a failed run, the next one gets new workers."""
        with ExitStack() as stack:
            session: Session | None = None
            for run in runs:
                folder = self.folder.empty_run_folder(run.cell, run.repetition)
                try:
                    if session is None:
                        listener.run_started(run, "starting workers")
                        session = stack.enter_context(open_session(setup))
                    result = self._play(session, run, folder, listener)
                except Exception as error:  # A bug fails its run, not the whole study.
                    if _was_interrupted(error):
                        raise KeyboardInterrupt from error
                    result = RunResult({"state": FAILED, "reason": _failure_reason(error, folder)})
                    session = None
                    stack.close()
                self._save(run, result, listener)
                time.sleep(self.plan.cool_down_s)

    def _play(self, session: Session, run: PlannedRun, folder: Path, listener: ProgressListener) -> RunResult:
        listener.run_started(run, "")
        seed = run_seed(self._seed, run.cell.name, run.repetition)
        return run_cell(
            session,
            self.plan,
            run.cell,
            folder,
            seed=seed,
            repetition=run.repetition,
            on_step=lambda step: listener.run_started(run, step),
        )

    def _save(self, run: PlannedRun, result: RunResult, listener: ProgressListener) -> None:
        metric = SCENARIOS[run.cell.scenario].metric
        row = {
            "study": self.plan.name,
            "cell": run.cell.name,
            "repetition": run.repetition,
            "order": run.order,
            **result.row,
            **{
                name: value for name, value in run.cell.columns().items() if value is not None or name not in result.row
            },
            "metric": metric,
            "metric_value": result.row.get(metric),
        }
        saved = replace(result, row=row)
        self.folder.save_result(run.cell, run.repetition, saved)
        listener.run_finished(run, saved)


def missing_devices(devices: Iterable[str]) -> dict[str, str]:
    """Returns the reason for each device that this machine lacks; a CPU is always available.

    A separate process asks TensorFlow, which would otherwise keep memory and threads in this one.
    """
    checked = sorted(set(devices) - {"cpu"})
    if not checked:
        return {}
    command = [sys.executable, "-c", _CHECK_DEVICES, *checked]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {device: reason for device, reason in zip(checked, done.stdout.splitlines(), strict=True) if reason}


def _was_interrupted(error: BaseException | None) -> bool:
    """Returns whether the error was raised while handling a KeyboardInterrupt, which it would hide."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _failure_reason(error: Exception, folder: Path) -> str:
    """Returns the reason for a failed run; an unexpected error writes its traceback into the folder of the run."""
    if isinstance(error, SkylaneError | OSError):  # An OSError, such as a full disk, is not a bug.
        return str(error)
    path = folder / "traceback.txt"
    write_file(path, "".join(traceback.format_exception(error)))
    return f"a bug in Skylane: {type(error).__name__}: {error}; please report it with {path}"


def run_cell(
    session: Session,
    plan: StudyPlan,
    cell: StudyCell,
    folder: Path,
    *,
    seed: int,
    repetition: int,
    on_step: Callable[[str], None] = lambda _: None,
) -> RunResult:
    """Plays a cell into `folder` and measures it; `on_step` receives the steps of a capacity search.

    `seed` is that of arrivals and link; `repetition`, counted from 1, selects the seed of the drive.

    Raises:
        SkylaneError: A vehicle or worker failed, or nothing could be measured.
    """
    settings = plan.settings(cell.scenario)
    if cell.frames is not None:
        settings = settings.model_copy(update={"frames": cell.frames})
    drive_seed = plan.drive_seed(repetition)
    frames, warm_up = frame_counts(cell.scenario, settings, plan.frames, plan.warm_up_frames)

    def attempt(vehicles: int, name: str) -> tuple[RunPart, RunMeasurement]:
        load = VehicleLoad(frames + warm_up, warm_up, vehicles, seed, settings, cell.workers, drive_seed)
        session.play(cell, load, folder / name)
        run = measure(folder / name, vehicles, warm_up, every_frame=measures_every_frame(cell))
        if plan.accuracy:
            source = source_of(plan, cell, drive_seed)
            run = replace(run, accuracy=compare_masks(folder / name, source, warm_up))
        return RunPart(name, vehicles, warm_up), run

    row = {"state": DONE, "broker": session.broker, "seed": seed}
    if plan.bag is None:
        row["drive_seed"] = drive_seed
    if isinstance(settings, CapacitySettings):
        return _search(attempt, settings, row, folder, on_step)
    part, run = attempt(cell.vehicles, ".")
    row |= _measured_columns(run, settings, folder)
    if isinstance(settings, ValidityRules):
        verdict = judge(run, settings)
        row |= {"validity": verdict.validity, "validity_reason": verdict.reason}
    return RunResult(row, (part,))


def _search(
    attempt: Callable[[int, str], tuple[RunPart, RunMeasurement]],
    settings: CapacitySettings,
    row: Mapping[str, Any],
    folder: Path,
    on_step: Callable[[str], None],
) -> RunResult:
    """Searches for the capacity; the row gets the metrics of the largest step that fits, or of the first step."""
    parts: list[RunPart] = []
    runs: dict[int, RunMeasurement] = {}

    def step(vehicles: int) -> CapacityStep:
        on_step(f"{vehicles} vehicle{'s' if vehicles > 1 else ''}")
        part, runs[vehicles] = attempt(vehicles, f"{vehicles}-vehicles")
        parts.append(part)
        return judge_step(runs[vehicles], vehicles, settings)

    search = search_capacity(step, settings.most)
    shown = search.vehicles or search.steps[0].vehicles
    reason = "" if search.is_bounded else f"{settings.most} fit, and more were not tried: raise scenarios.capacity.most"
    measured = _measured_columns(runs[shown], settings, folder / f"{shown}-vehicles")
    steps = tuple({"step": number, **asdict(one), "fits": one.fits} for number, one in enumerate(search.steps, start=1))
    return RunResult({**row, "capacity_vehicles": search.vehicles, "reason": reason, **measured}, tuple(parts), steps)


def _measured_columns(run: RunMeasurement, settings: RunLength, folder: Path) -> dict[str, Any]:
    usage = resource_usage(folder / RESOURCES, run.began_ns, run.ended_ns)
    return run_metrics(run, settings) | usage | run_provenance(run)


@dataclass(frozen=True, slots=True)
class CapacityStep:
    """The result for one number of vehicles; `reason` names the exceeded limits and is empty if it fits."""

    vehicles: int
    p99_ms: float | None  # None for fewer than 100 answered frames.
    unanswered_share: float
    throughput_hz: float
    reason: str = ""

    @property
    def fits(self) -> bool:
        """True if this number of vehicles keeps the limits."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """The largest number of vehicles that fits, 0 if one vehicle does not fit, and the steps of the search."""

    vehicles: int
    steps: tuple[CapacityStep, ...]

    @property
    def is_bounded(self) -> bool:
        """True if a larger number did not fit; otherwise the search ended at the maximum it may try."""
        return any(not step.fits for step in self.steps)


def search_capacity(attempt: Callable[[int], CapacityStep], most: int) -> CapacityResult:
    """Doubles the number of vehicles until it does not fit, then bisects; at most 2·log2(most) + 2 attempts.

    The search assumes that every smaller number also fits. Near the limit, random variation can break this assumption;
    the repetitions of the study show by how much.
    """
    steps: list[CapacityStep] = []

    def fits(vehicles: int) -> bool:
        steps.append(attempt(vehicles))
        return steps[-1].fits

    fitting, failing, candidate = 0, most + 1, 1
    while candidate < failing:
        if fits(candidate):
            fitting = candidate
            candidate = min(2 * candidate, most) if candidate < most else failing
        else:
            failing = candidate
    while failing - fitting > 1 and failing <= most:
        middle = (fitting + failing) // 2
        if fits(middle):
            fitting = middle
        else:
            failing = middle
    return CapacityResult(fitting, tuple(steps))


def judge_step(run: RunMeasurement, vehicles: int, settings: CapacitySettings) -> CapacityStep:
    """Compares a run with the limits."""
    metrics = run_metrics(run, settings)
    (name, late_ms), share = tail_latency(run), run.unanswered_share
    reasons = []
    if late_ms is None:
        reasons.append("no frame was answered")
    elif late_ms > settings.limit_ms:
        reasons.append(f"{name} {late_ms:.1f} ms is over {settings.limit_ms:g} ms")
    if share > settings.unanswered_share:
        reasons.append(f"{share:.1%} unanswered is over {settings.unanswered_share:.1%}")
    return CapacityStep(vehicles, metrics["total_p99_ms"], share, metrics["throughput_hz"], "; ".join(reasons))
