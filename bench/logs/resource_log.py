"""What was sampled beside a run, read with pandas: broken cells are left out and told."""

from pathlib import Path

import numpy as np
import pandas as pd

from bench.logs.problems import Problem, ProblemCollector
from bench.logs.text_table import TextTable, read_table
from shared.resources.sampler import COLUMNS, RESOURCES_NAME
from shared.runlog.latency_log import LogError

_NODE = "node"
_AT = "at_ns"


def load_resources(folder: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """The columns of `shared.resources.sampler` and what is wrong with the file; no rows where there is no such file.

    `at_ns` is int64, `node` is str, the others are float64 with NaN where nothing was measured. A row without time or
    node is left out.
    """
    path = folder / RESOURCES_NAME
    problems = ProblemCollector(path)
    if not path.exists():
        return _none(), ()
    try:
        table = read_table(path, problems)
    except LogError as error:
        problems.whole(str(error).removeprefix(f"{path}, ").removeprefix(f"{path} "))
        return _none(), problems.all()
    missing = [name for name in COLUMNS if name not in table.names]
    if missing:
        problems.whole(f"row 1 has no column {', '.join(missing)}: resources are left out")
        return _none(), problems.all()
    return _sampled(table, problems), problems.all()


def _none() -> pd.DataFrame:
    kinds = {_NODE: "str", _AT: np.int64}
    return pd.DataFrame({name: pd.Series([], dtype=kinds.get(name, np.float64)) for name in COLUMNS})


def _sampled(table: TextTable, problems: ProblemCollector) -> pd.DataFrame:
    at = table.integers(_AT)
    nameless = table.empty(_NODE)
    problems.rows("rows without time", table.lines[~at.known], lambda _: "is no whole number: the row is left out", _AT)
    problems.rows("rows without node", table.lines[nameless], lambda _: "is empty: the row is left out", _NODE)
    table = table.where(at.known & ~nameless)
    columns = {name: _decimals(table, name, problems) for name in COLUMNS if name not in (_AT, _NODE)}
    columns |= {_AT: pd.Series(table.integers(_AT).whole), _NODE: table.series(_NODE)}
    return pd.DataFrame({name: columns[name] for name in COLUMNS})


def _decimals(table: TextTable, name: str, problems: ProblemCollector) -> pd.Series:
    values, wrong = table.decimals(name)
    problems.rows("cells that hold no number", table.lines[wrong], lambda _: "is no number: the cell is left out", name)
    return pd.Series(values)
