"""The runner: goes through the runs of a study in their order, keeps what each gives, and lets a failing one fail alone."""

import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench.study.execution import cell_run
from bench.study.execution.cell_run import DONE, FAILED, SKIPPED, Result
from bench.study.execution.session import Session
from bench.study.plan.cell import Cell, WorkerSetup
from bench.study.plan.run_order import run_seed, turns
from bench.study.plan.scenarios import SCENARIOS
from bench.study.plan.study_plan import Plan, cells
from bench.study.results.folder import StudyFolder
from shared.errors import SkylaneError


class Watcher(Protocol):
    """Who is told how a study gets on."""

    def begins(self, run: "Run", step: str) -> None:
        """A run, or a step of it, begins."""

    def ended(self, run: "Run", result: Result) -> None:
        """A run has ended, and its result is kept."""


@dataclass(frozen=True, slots=True)
class Run:
    """A cell and one of its repetitions; `order` is its place in the study, from 1."""

    order: int
    cell: Cell
    repetition: int


Open = Callable[[WorkerSetup], AbstractContextManager[Session]]


class Runner:
    """Runs a study, or what is left of it."""

    def __init__(self, plan: Plan, folder: StudyFolder, seed: int) -> None:
        self.plan = plan
        self.folder = folder
        self._seed = seed
        self._turns: list[tuple[WorkerSetup, list[Run]]] = []
        order = 0
        for turn in turns(cells(plan), plan.repetitions, seed):
            self._turns.append((turn.setup, []))
            for cell in turn.cells:
                order += 1
                self._turns[-1][1].append(Run(order, cell, turn.repetition))

    @property
    def planned(self) -> list[Run]:
        """All runs in their order."""
        return [run for _, members in self._turns for run in members]

    @property
    def left(self) -> list[Run]:
        """Those that are not done yet.

        Raises:
            StudyError: a result cannot be read.
        """
        done = {run for run, result in self.results() if result.state == DONE}
        return [run for run in self.planned if run not in done]

    @property
    def done(self) -> int:
        """How many of them are done."""
        return len(self.planned) - len(self.left)

    def results(self) -> list[tuple[Run, Result]]:
        """What is known so far, in the order of the runs.

        Raises:
            StudyError: a result cannot be read.
        """
        kept = ((run, self.folder.result(run.cell, run.repetition)) for run in self.planned)
        return [(run, result) for run, result in kept if result is not None]

    def run(self, open_session: Open, missing: Mapping[str, str], watcher: Watcher) -> None:
        """Run what is not done. `missing`: the devices that are not here, with the reason.

        Raises:
            SkylaneError: the folder cannot be written. A run that fails is a result, and no error.
        """
        to_do = set(self.left)
        for setup, members in self._turns:
            left = [run for run in members if run in to_do]
            if reason := missing.get(setup.device):
                for run in left:
                    self._keep(run, Result({"state": SKIPPED, "reason": reason}), watcher)
                continue
            self._turn(setup, left, open_session, watcher)

    def _turn(self, setup: WorkerSetup, left: list[Run], open_session: Open, watcher: Watcher) -> None:
        """The runs of one setup, by the same workers; where one failed, the next ones get new workers."""
        with ExitStack() as stack:
            session: Session | None = None
            for run in left:
                folder = self.folder.fresh_run(run.cell, run.repetition)
                try:
                    if session is None:
                        watcher.begins(run, "starting workers")
                        session = stack.enter_context(open_session(setup))
                    watcher.begins(run, "")
                    seed = run_seed(self._seed, run.cell.name, run.repetition)
                    result = cell_run.play(
                        session, self.plan, run.cell, folder, seed=seed, on_step=self._teller(watcher, run)
                    )
                except Exception as error:  # A bug costs its run, not the night's; the trace is kept.
                    if _was_interrupted(error):
                        raise KeyboardInterrupt from error
                    result = Result({"state": FAILED, "reason": _reason(error, folder)})
                    session = None
                    stack.close()
                self._keep(run, result, watcher)
                time.sleep(self.plan.cool_down_s)

    @staticmethod
    def _teller(watcher: Watcher, run: Run) -> Callable[[str], None]:
        return lambda step: watcher.begins(run, step)

    def _keep(self, run: Run, result: Result, watcher: Watcher) -> None:
        metric = SCENARIOS[run.cell.scenario].metric
        row = {
            "study": self.plan.name,
            "cell": run.cell.name,
            "repetition": run.repetition,
            "order": run.order,
            **run.cell.columns(),
            **result.row,
            "metric": metric,
            "metric_value": result.row.get(metric),
        }
        kept = replace(result, row=row)
        self.folder.keep(run.cell, run.repetition, kept)
        watcher.ended(run, kept)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether it was raised on the way out of an interruption, by a part that could not be closed: which it hides."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _reason(error: Exception, folder: Path) -> str:
    """Why a run failed; what no user can mend leaves its traceback in the run's folder."""
    if isinstance(error, SkylaneError | OSError):  # What the system refuses, such as room on the disk, is no bug.
        return str(error)
    path = folder / "traceback.txt"
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return f"a bug of ours: {type(error).__name__}: {error}; please report it with {path}"
