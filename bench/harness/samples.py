"""The few numbers that stand for many."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shared.runlog.percentiles import MISSING, NOTE, percentiles, shown
from shared.terminal_table import Table

NAMES = {"min": 0.0, "median": 50.0, "p95": 95.0, "p99": 99.0}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Minimum, median, 95th and 99th percentile, in the unit of `values`; None where the sample is too small for one."""
    found = percentiles(values, tuple(NAMES.values()))
    return {name: None if math.isnan(value) else value for name, value in zip(NAMES, found, strict=True)}


def spread_table(title: str, rows: Mapping[str, Mapping[str, Any]], digits: int = 2) -> Table:
    """Spreads as a table, one in each row."""
    cells = [(name, *(shown(values[key], digits) for key in NAMES)) for name, values in rows.items()]
    table = Table(title=title, caption=NOTE if any(MISSING in row for row in cells) else "")
    table.add_column("what")
    for heading in NAMES:
        table.add_column(heading, justify="right")
    for row in cells:
        table.add_row(*row)
    return table
