"""Reads the folder of a run with pandas, log and resource samples, and selects the frames with a result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.logs.log_rows import LogRows, read_log
from analysis.logs.problems import Problem, ProblemCollector
from analysis.logs.text_table import IntegerColumn, TextTable, read_table
from shared.resources.sampler import COLUMNS, RESOURCES_NAME
from shared.runlog.columns import LATENCY, Kind
from shared.runlog.latency_log import WITH_RESULT, LogError, Outcome


@dataclass(frozen=True, slots=True)
class RunLog:
    """The contents of a run's folder.

    `frames` has one row per frame, in the order in which the frames ended, and all columns of
    `shared.runlog.columns.LATENCY`: text as `str` (empty if not set), integers as `Int64` with `<NA>` (timestamps stay
    exact), milliseconds and decimals as `float64` with NaN. Columns of later versions are kept as text; those
    that an earlier version lacks are empty. `resources` has the columns of `shared.resources.sampler`.
    """

    folder: Path
    name: str
    frames: pd.DataFrame
    manifest: Mapping[str, Any]  # Empty if it is missing, unreadable or belongs to another run.
    resources: pd.DataFrame
    problems: tuple[Problem, ...]


def load_run(folder: Path) -> RunLog:
    """Reads a run; broken rows and cells are skipped and listed in `problems`.

    A row with decreasing timestamps keeps its outcome and loses its times. If the log contains rows of several runs,
    those of the manifest's session are kept; without a manifest, those of the session with the most rows.

    Raises:
        LogError: The log is missing or lacks columns, which the message names.
    """
    rows = read_log(folder)
    resources, resource_problems = load_resources(folder)
    log_problems = (problem for problems in rows.problems.values() for problem in problems)
    return RunLog(
        folder, folder.resolve().name, _frames(rows), rows.manifest, resources, (*log_problems, *resource_problems)
    )


def load_runs(folders: Sequence[Path]) -> tuple[RunLog, ...]:
    """Reads several runs; runs whose folders have the same name get the shortest distinct end of their paths.

    Raises:
        LogError: See `load_run`.
    """
    names = distinct_names([folder.resolve() for folder in folders])
    return tuple(replace(load_run(folder), name=name) for folder, name in zip(folders, names, strict=True))


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Returns the name of each folder, or the shortest end of its path that no other one has."""
    for depth in range(1, max((len(folder.parts) for folder in folders), default=0) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.name} ({number})" for number, folder in enumerate(folders, start=1)]


def _frames(rows: LogRows) -> pd.DataFrame:
    columns = {
        name: _series(name, rows.numbers[name]) if name in rows.numbers else rows.table.series(name)
        for name in rows.table.names
    }
    return pd.DataFrame(columns)


def _series(name: str, numbers: IntegerColumn) -> pd.Series:
    """Converts a column for pandas: milliseconds and decimals to float64, others to Int64."""
    if LATENCY[name].kind not in (Kind.INTEGER, Kind.TIME):
        return pd.Series(np.where(numbers.known, numbers.data / 1e6, np.nan))
    return pd.Series(pd.arrays.IntegerArray(numbers.data, ~numbers.known))


ORIGINS: Final = {  # The outcomes with a result, and the origin of that result.
    Outcome.ANSWERED: "worker",
    Outcome.REUSED: "reused",
    Outcome.ANSWERED_LOCALLY: "local",
}
NOT_SENT: Final = tuple(outcome for outcome in ORIGINS if outcome is not Outcome.ANSWERED)


def frames_with_result(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the frames that got a result in time, of any origin."""
    return frames[frames["outcome"].isin(WITH_RESULT)]


def frames_not_sent(frames: pd.DataFrame) -> pd.DataFrame:
    """Returns the frames that got a result without being sent."""
    return frames[frames["outcome"].isin(NOT_SENT)]


def result_times_ns(frames: pd.DataFrame) -> pd.Series:
    """Returns the time at which each frame got its result, as Int64; <NA> for a frame without a total."""
    totals_ns = (frames["total_ms"].astype("float64") * 1e6).round().astype("Int64")
    return frames["t_due_ns"].astype("Int64") + totals_ns


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
    problems.add_rows("rows without time", table.lines[~has_time], "is not an integer: the row is skipped", _TIME)
    problems.add_rows("rows without node", table.lines[~has_node], "is empty: the row is skipped", _NODE)
    table = table.where(has_time & has_node)
    columns = {name: _decimals(table, name, problems) for name in COLUMNS if name not in (_TIME, _NODE)}
    columns |= {_TIME: pd.Series(table.integers(_TIME).data), _NODE: table.series(_NODE)}
    return pd.DataFrame({name: columns[name] for name in COLUMNS})


def _decimals(table: TextTable, name: str, problems: ProblemCollector) -> pd.Series:
    values, invalid = table.decimals(name)
    problems.add_rows("cells that are not numbers", table.lines[invalid], "is not a number: the cell is skipped", name)
    return pd.Series(values)
