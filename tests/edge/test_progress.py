"""Progress of a run on a terminal and in the log."""

import sys
from collections.abc import Callable
from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console

from edge.ledger import RunCounts
from edge.node import EdgeNode
from edge.pacing import Timeline
from edge.progress import PeriodicSummary, run_with_progress
from shared.logs import configure_logging, get_logger
from shared.runlog.latency_log import Outcome


class Node:
    """A node that ticks three times and logs between the ticks."""

    has_schedule = True

    def __init__(self) -> None:
        self._answered = 0
        self.timeline = Timeline()

    def counts(self) -> RunCounts:
        """See EdgeNode."""
        self._answered += 1
        return RunCounts(self._answered, 1, {Outcome.ANSWERED: self._answered}, {}, 12.34)

    def run(self, on_tick: Callable[[], None]) -> RunCounts:
        """See EdgeNode."""
        for _ in range(3):
            on_tick()
            get_logger("edge").warning("in between")
        return self.counts()


def test_log_lines_appear_above_the_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line written directly to the terminal would break the bar."""
    terminal = StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    configure_logging(context={"node": "edge"})
    console = Console(file=terminal, force_terminal=True, width=160)
    run_with_progress(cast(EdgeNode, Node()), 3, console)
    lines = [line for line in terminal.getvalue().splitlines() if "in between" in line]
    assert len(lines) == 3
    assert not any("answered" in line or "━" in line for line in lines)
    assert "1 in flight" in terminal.getvalue()


def test_the_bar_says_that_the_user_paused_or_changed_the_speed() -> None:
    """Otherwise a forgotten pause looks like a run that hangs."""
    terminal, node = StringIO(), Node()
    node.timeline.faster()
    console = Console(file=terminal, force_terminal=True, width=160)
    run_with_progress(cast(EdgeNode, node), 3, console)
    assert "speed ×2 · " in terminal.getvalue()
    node.timeline.toggle_pause()
    run_with_progress(cast(EdgeNode, node), 3, console)
    assert "paused · " in terminal.getvalue()


def test_the_bar_shows_results_of_every_origin() -> None:
    """The rate counts them all; a run without a gate or local model shows no counts for them."""
    outcomes = {Outcome.ANSWERED: 2, Outcome.REUSED: 5, Outcome.ANSWERED_LOCALLY: 1, Outcome.EXPIRED: 1}
    terminal = StringIO()

    class GatedNode(Node):
        def counts(self) -> RunCounts:
            return RunCounts(9, 0, outcomes, {}, 12.34)

    run_with_progress(cast(EdgeNode, GatedNode()), 9, Console(file=terminal, force_terminal=True, width=160))
    assert "2 answered · 5 reused · 1 local · 0 dropped" in terminal.getvalue()


def test_a_run_without_a_terminal_logs_a_summary_per_period(log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """The counts are those since the previous line, so that an operator sees the rate."""
    run_with_progress(cast(EdgeNode, Node()), None, Console(file=StringIO()), summary_s=0.0)
    summaries = [line for line in log_lines() if line["event"] == "summary"]
    assert [line["answered"] for line in summaries] == [1, 1, 1]
    assert (summaries[0]["in_flight"], summaries[0]["p50_ms"]) == (1, 12.3)


def test_a_summary_waits_for_its_period(log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """The node calls the progress display ten times per second."""
    summary = PeriodicSummary(3600.0)
    for answered in range(10):
        summary.update(RunCounts(answered, 0, {Outcome.ANSWERED: answered}, {}, None))
    assert not log_lines()
