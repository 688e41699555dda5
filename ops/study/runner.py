"""Runs a study in its random order and saves each result; a failed run does not stop the others."""

import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from analysis.study.measurement import DONE, FAILED, SKIPPED, RunResult
from analysis.study.scenarios import SCENARIOS
from analysis.study.study_folder import StudyFolder
from analysis.study.study_plan import PlannedRun, StudyPlan, WorkerSetup, cells, ordered_groups, run_seed
from ops.study.cell_run import run_cell
from ops.study.session import Session
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
