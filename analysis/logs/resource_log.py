"""Reads the resource samples of a run (CPU, memory, traffic, GPU) with pandas."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.logs.problems import Problem, ProblemCollector
from analysis.logs.text_table import TextTable, read_table
from shared.resources.sampler import COLUMNS, RESOURCES_NAME
from shared.runlog.latency_log import LogError

_NODE = "node"
_TIME = "at_ns"


def load_resources(folder: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """Returns the resource samples of a run and the problems of their file; no rows if the file does not exist.

    The columns are those of `shared.resources.sampler`: `at_ns` is int64, `node` is str, the others are float64 with
    NaN where nothing was measured. Rows without time or node are skipped.
    """
    path = folder / RESOURCES_NAME
    problems = ProblemCollector(path)
    if not path.exists():
        return _no_samples(), ()
    try:
        table = read_table(path, problems)
    except LogError as error:
        problems.add_file(str(error).removeprefix(f"{path}, ").removeprefix(f"{path} "))
        return _no_samples(), problems.collected()
    missing = [name for name in COLUMNS if name not in table.names]
    if missing:
        problems.add_file(f"row 1 has no column {', '.join(missing)}: resources are skipped")
        return _no_samples(), problems.collected()
    return _samples(table, problems), problems.collected()


def _no_samples() -> pd.DataFrame:
    types = {_NODE: "str", _TIME: np.int64}
    return pd.DataFrame({name: pd.Series([], dtype=types.get(name, np.float64)) for name in COLUMNS})


def _samples(table: TextTable, problems: ProblemCollector) -> pd.DataFrame:
    has_time, has_node = table.integers(_TIME).known, ~table.empty(_NODE)
    problems.add_rows(
        "rows without time", table.lines[~has_time], lambda _: "is not an integer: the row is skipped", _TIME
    )
    problems.add_rows("rows without node", table.lines[~has_node], lambda _: "is empty: the row is skipped", _NODE)
    table = table.where(has_time & has_node)
    columns = {name: _decimals(table, name, problems) for name in COLUMNS if name not in (_TIME, _NODE)}
    columns |= {_TIME: pd.Series(table.integers(_TIME).data), _NODE: table.series(_NODE)}
    return pd.DataFrame({name: columns[name] for name in COLUMNS})


def _decimals(table: TextTable, name: str, problems: ProblemCollector) -> pd.Series:
    values, invalid = table.decimals(name)
    problems.add_rows(
        "cells that are not numbers", table.lines[invalid], lambda _: "is not a number: the cell is skipped", name
    )
    return pd.Series(values)
