"""Progress of a run: a bar on a terminal, elsewhere a summary line a minute in the log."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from edge.node import EdgeNode
from edge.reliability.ledger import RunCounts
from shared import clock
from shared.logs import get_logger
from shared.runlog.latency_log import Outcome

SUMMARY_S = 60.0

_LOG = get_logger("edge")


def run_with_progress(node: EdgeNode, frame_count: int | None, console: Console, summary_s: float = SUMMARY_S) -> None:
    """Runs a node to its end and shows how far it is.

    Args:
        node: The node.
        frame_count: How many frames it will see; None where that is not known.
        console: Where the bar is shown, if that is a terminal. It belongs on standard error, as log lines do: rich then
            writes them above the bar.
        summary_s: Time between summary lines where there is no terminal.
    """
    if not console.is_terminal:
        summary = PeriodicSummary(summary_s)
        node.run(lambda: summary.look(node.counts()))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        bar = _Bar(progress, progress.add_task("", total=frame_count))
        node.run(lambda: bar.show(node.counts()))


class PeriodicSummary:
    """Logs by how much the counts of a run have grown, once a period."""

    def __init__(self, period_s: float) -> None:
        self._period_ns = round(period_s * 1e9)
        self._logged_ns = clock.now_ns()
        self._closed: dict[Outcome, int] = {}

    def look(self, counts: RunCounts) -> None:
        """Logs the summary if the period has passed since the last one; call it more often than that."""
        now_ns = clock.now_ns()
        if now_ns - self._logged_ns < self._period_ns:
            return
        outcomes = dict(counts.outcomes)
        grown = {
            outcome.value: outcomes[outcome] - self._closed.get(outcome, 0)
            for outcome in Outcome
            if outcome in outcomes
        }
        median = {} if counts.median_ms is None else {"p50_ms": round(counts.median_ms, 1)}
        _LOG.info(
            "summary",
            seconds=round((now_ns - self._logged_ns) / 1e9),
            **{name: count for name, count in grown.items() if count},
            in_flight=counts.in_flight,
            **median,
        )
        self._closed, self._logged_ns = outcomes, now_ns


class _Bar:
    """Shows a counts as a progress bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._began_s = progress.get_time()

    def show(self, counts: RunCounts) -> None:
        """Updates the bar."""
        answered = counts.outcomes.get(Outcome.ANSWERED, 0)
        rate_hz = answered / max(0.1, self._progress.get_time() - self._began_s)
        median = f" · p50 {counts.median_ms:.0f} ms" if counts.median_ms is not None else ""
        self._progress.update(
            self._task,
            completed=counts.closed,
            description=f"{rate_hz:.1f}/s · {counts.in_flight} in flight · {answered} answered · "
            f"{counts.outcomes.get(Outcome.DROPPED, 0)} dropped{median}",
        )
