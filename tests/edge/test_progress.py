import logging
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console

from edge.node import EdgeNode
from edge.progress import PeriodicSummary, run_with_progress
from edge.reliability.ledger import RunCounts
from shared.logs import configure_logging, get_logger
from shared.runlog.latency_log import Outcome


class Node:
    """Ticks three times and logs between the ticks."""

    def __init__(self) -> None:
        self._answered = 0

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


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Logging is configured for the whole process; what was set before comes back."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


def test_a_log_line_stands_above_the_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written straight to the terminal it would tear the bar, and half of the bar would stay in front of it."""
    terminal = StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    configure_logging(context={"node": "edge"})
    console = Console(file=terminal, force_terminal=True, width=160)
    run_with_progress(cast(EdgeNode, Node()), 3, console)
    lines = [line for line in terminal.getvalue().splitlines() if "in between" in line]
    assert len(lines) == 3
    assert not any("answered" in line or "━" in line for line in lines)
    assert "1 in flight" in terminal.getvalue()


def test_a_run_without_a_terminal_logs_a_summary_a_period(log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """It counts what came since the line before: an operator sees the rate, and when it falls."""
    run_with_progress(cast(EdgeNode, Node()), None, Console(file=StringIO()), summary_s=0.0)
    summaries = [line for line in log_lines() if line["event"] == "summary"]
    assert [line["answered"] for line in summaries] == [1, 1, 1]
    assert (summaries[0]["in_flight"], summaries[0]["p50_ms"]) == (1, 12.3)


def test_a_summary_waits_for_its_period(log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """The node calls ten times a second."""
    summary = PeriodicSummary(3600.0)
    for answered in range(10):
        summary.look(RunCounts(answered, 0, {Outcome.ANSWERED: answered}, {}, None))
    assert not log_lines()
