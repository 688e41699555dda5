"""Shows the progress of a study on the terminal: current run, finished runs, remaining time and failures."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from analysis.study.measurement import DONE, RunResult
from analysis.study.study_plan import PlannedRun
from analysis.study.validity import INVALID

_ESTIMATE_PERIOD_S = 30 * 86_400.0  # Includes all runs in the estimate; a run can be longer than rich's default period.


class ProgressBar:
    """A ProgressListener that shows a bar, or prints one line per run if the output is not a terminal."""

    def __init__(self, console: Console, planned: int, done: int) -> None:
        self._console = console
        self._planned = planned
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("runs · time left"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns,
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=_ESTIMATE_PERIOD_S,
        )
        # Runs of an earlier call take no time now and would distort the estimate.
        self._task = self._progress.add_task("", total=planned - done)

    def run_started(self, run: PlannedRun, step: str) -> None:
        """See ProgressListener."""
        description = f"{run.cell.name} #{run.repetition}{f' ({step})' if step else ''}"
        self._progress.update(self._task, description=description)

    def run_finished(self, run: PlannedRun, result: RunResult) -> None:
        """See ProgressListener."""
        self._progress.advance(self._task)
        line = f"{run.order}/{self._planned} {run.cell.name} #{run.repetition}: {_summary(result)}"
        if not self._console.is_terminal or result.state != DONE:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _summary(result: RunResult) -> str:
    row = result.row
    if result.state != DONE:
        return f"{result.state}: {row['reason']}"
    value = row.get("metric_value")
    summary = f"{row['metric']} {'not measured' if value is None else f'{value:.4g}'}"
    if row.get("validity") == INVALID:
        return f"{summary}, INVALID by MLPerf's rules: {row['validity_reason']}"
    return f"{summary}, VALID" if row.get("validity") else summary
