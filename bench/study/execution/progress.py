"""A study's progress on the terminal: the current run, how many are done, the time left, and each failure as it comes."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.study.execution.cell_run import DONE, Result
from bench.study.execution.runner import Run
from bench.study.results.validity import INVALID

_MEMORY_S = 30 * 86_400.0  # The estimate is of all runs made now: a single one may take longer than rich remembers.


class ProgressBar:
    """A watcher that shows a bar; where there is no terminal, a line for each run."""

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
            *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=_MEMORY_S
        )
        # Runs that are kept from before took no time now, and do not count.
        self._task = self._progress.add_task("", total=planned - done)

    def begins(self, run: Run, step: str) -> None:
        """See Watcher."""
        told = f"{run.cell.name} #{run.repetition}{f' ({step})' if step else ''}"
        self._progress.update(self._task, description=told)

    def ended(self, run: Run, result: Result) -> None:
        """See Watcher."""
        self._progress.advance(self._task)
        told = f"{run.order}/{self._planned} {run.cell.name} #{run.repetition}: {_summary(result)}"
        if not self._console.is_terminal or result.state != DONE:
            self._console.print(told, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def _summary(result: Result) -> str:
    row = result.row
    if result.state != DONE:
        return f"{result.state}: {row['reason']}"
    value = row.get("metric_value")
    told = f"{row['metric']} {'not measured' if value is None else f'{value:.4g}'}"
    if row.get("validity") == INVALID:
        return f"{told}, INVALID: {row['validity_reason']}"
    return f"{told}, VALID" if row.get("validity") else told
