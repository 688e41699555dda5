"""The progress of a run: a bar on a terminal, with keys that control the run; otherwise a log line per minute."""

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from edge.ledger import RunCounts
from edge.node import EdgeNode
from edge.pacing import Timeline
from shared import clock
from shared.logs import get_logger
from shared.runlog.latency_log import Outcome

SUMMARY_S = 60.0
_SHOWN = {
    Outcome.ANSWERED: "answered",
    Outcome.REUSED: "reused",
    Outcome.ANSWERED_LOCALLY: "local",
    Outcome.DROPPED: "dropped",
}
_ALWAYS_SHOWN = (Outcome.ANSWERED, Outcome.DROPPED)

RIGHT = "\x1b[C"
HELP = "space pauses · → steps · + and − change the speed"
_POLL_S = 0.2
_READ_BYTES = 64
_LOG = get_logger("edge")


def run_with_progress(node: EdgeNode, frame_count: int | None, console: Console, summary_s: float = SUMMARY_S) -> None:
    """Runs a node to its end and shows its progress.

    `console` shows the bar if it is a terminal. It should write to standard error, as the log does: rich then puts log
    lines above the bar. `summary_s`: time between summary lines if there is no terminal.
    """
    if not console.is_terminal:
        summary = PeriodicSummary(summary_s)
        node.run(lambda: summary.update(node.counts()))
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress, reading_keys(_actions(node)) as has_keys:
        if has_keys:
            progress.console.print(f"keys: {HELP}", highlight=False)
        bar, started_s = progress.add_task("", total=frame_count), progress.get_time()
        node.run(lambda: _show(progress, bar, started_s, node))


class PeriodicSummary:
    """Logs once per period how much the counts of a run have grown."""

    def __init__(self, period_s: float) -> None:
        self._period_ns = round(period_s * 1e9)
        self._logged_ns = clock.now_ns()
        self._logged: dict[Outcome, int] = {}

    def update(self, counts: RunCounts) -> None:
        """Logs a summary if the period has passed since the last one; call it more often than that."""
        now_ns = clock.now_ns()
        if now_ns - self._logged_ns < self._period_ns:
            return
        outcomes = dict(counts.outcomes)
        growth = {each.value: outcomes[each] - self._logged.get(each, 0) for each in Outcome if each in outcomes}
        median = {} if counts.median_ms is None else {"p50_ms": round(counts.median_ms, 1)}
        _LOG.info(
            "summary",
            seconds=round((now_ns - self._logged_ns) / 1e9),
            **{name: count for name, count in growth.items() if count},
            in_flight=counts.in_flight,
            **median,
        )
        self._logged, self._logged_ns = outcomes, now_ns


def _actions(node: EdgeNode) -> Mapping[str, Callable[[], None]]:
    """Returns the action of each key."""
    timeline = node.timeline
    if timeline is None:
        return {}
    actions = {" ": timeline.toggle_pause, RIGHT: timeline.step}
    if node.has_schedule:
        actions |= {"+": timeline.faster, "=": timeline.faster, "-": timeline.slower}
    return actions


def _show(progress: Progress, task: TaskID, started_s: float, node: EdgeNode) -> None:
    """Shows the counts of a node as a progress bar."""
    counts, timeline = node.counts(), node.timeline
    rate_hz = counts.with_result / max(0.1, progress.get_time() - started_s)
    median = f" · p50 {counts.median_ms:.0f} ms" if counts.median_ms is not None else ""
    ended = {outcome: counts.outcomes.get(outcome, 0) for outcome in _SHOWN}
    shown = [f"{ended[each]} {name}" for each, name in _SHOWN.items() if ended[each] or each in _ALWAYS_SHOWN]
    progress.update(
        task,
        completed=counts.closed,
        description=f"{_playback(timeline)}{rate_hz:.1f}/s · {counts.in_flight} in flight · {' · '.join(shown)}{median}",
    )


def _playback(timeline: Timeline | None) -> str:
    if timeline is None or not (timeline.is_paused or timeline.speed != 1):
        return ""
    return "paused · " if timeline.is_paused else f"speed ×{timeline.speed:g} · "


@contextmanager
def reading_keys(actions: Mapping[str, Callable[[], None]]) -> Iterator[bool]:
    """Calls the action of each key that is pressed; yields True if there are actions and a terminal to read from.

    The terminal is restored at the end. A process in the background reads nothing, so that the shell does not stop it.
    """
    terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if not actions or terminal is None or not _is_in_foreground(terminal):
        yield False
        return
    before = termios.tcgetattr(terminal)
    ended = threading.Event()
    thread = threading.Thread(target=_read, args=(terminal, actions, ended), name="keys", daemon=True)
    try:
        tty.setcbreak(terminal, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z keep their meaning.
        thread.start()
        yield True
    finally:
        ended.set()
        if _is_in_foreground(terminal):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        thread.join()


def _read(terminal: int, actions: Mapping[str, Callable[[], None]], ended: threading.Event) -> None:
    while not ended.is_set():
        if not _is_in_foreground(terminal):
            ended.wait(_POLL_S)
        elif select.select([terminal], [], [], _POLL_S)[0]:
            pressed = os.read(terminal, _READ_BYTES).decode(errors="ignore")
            if not pressed:
                return  # The terminal was closed.
            while pressed:
                key = next((each for each in actions if pressed.startswith(each)), pressed[0])
                pressed = pressed[len(key) :]
                actions.get(key, lambda: None)()


def _is_in_foreground(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
