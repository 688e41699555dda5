"""Checks how the workers of frames were chosen: the column `dispatch`."""

from pathlib import Path

from analysis.logs.log_rows import LogRows
from analysis.logs.problems import Problem, ProblemCollector
from analysis.logs.text_table import Ints
from edge.dispatch.dispatcher import DISPATCHERS
from edge.transports.transport import TRANSPORTS
from shared.runlog.latency_log import CSV_NAME, read_header

_COLUMN = "dispatch"


def check_dispatch(rows: LogRows, folder: Path) -> tuple[Problem, ...]:
    """Checks that exactly the frames that were sent through a broker have a dispatch.

    Logs of earlier versions have no such column.
    """
    problems = ProblemCollector(folder / CSV_NAME)
    if _COLUMN not in read_header(folder):
        return problems.collected()
    given, sent = ~rows.table.empty(_COLUMN), rows.numbers["attempts"].data > 0
    found = {
        f"is not one of {', '.join(DISPATCHERS)}": given & ~rows.table.one_of(_COLUMN, [*DISPATCHERS]),
        "is given, but the frame was not sent": given & ~sent,
    }
    if (has_broker := _has_broker(rows)) is not None:
        what = "is empty, but the frame was sent" if has_broker else "is given, but the run had no broker"
        found[what] = sent & (given != has_broker)
    for what, where in found.items():
        _report(problems, rows.table.lines[where], what)
    return problems.collected()


def _report(problems: ProblemCollector, lines: Ints, what: str) -> None:
    problems.add_rows(f"cells of {_COLUMN} that do not fit", lines, lambda _: what, _COLUMN)


def _has_broker(rows: LogRows) -> bool | None:
    """Returns whether the run had a broker; None if the manifest does not say."""
    configuration = rows.manifest.get("configuration")
    transport = configuration.get("transport") if isinstance(configuration, dict) else None
    entry = TRANSPORTS.get(transport) if isinstance(transport, str) else None
    return None if entry is None else entry.endpoint == "broker"
