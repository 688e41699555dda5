"""A run as it lies in its folder, read with pandas: what can be read is there, what cannot is told and never filled in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.logs.log_rows import LogRows, read_log
from bench.logs.problems import Problem
from bench.logs.resource_log import load_resources
from bench.logs.text_table import IntegerColumn

__all__ = ["Problem", "RunLog", "load_run", "load_runs"]


@dataclass(frozen=True, slots=True)
class RunLog:
    """What a run's folder holds.

    `frames` has one row a frame, in the order in which they ended, and all columns of `shared.runlog.latency_log`: text as
    `str`, empty where nothing was to say; whole numbers as `Int64` with `<NA>`, so that stamps stay exact; milliseconds
    as `float64` with NaN. Columns of a later version are kept as text. `resources` likewise has those of
    `shared.resources.sampler`, its measured columns as `float64`.
    """

    folder: Path
    name: str
    frames: pd.DataFrame
    manifest: Mapping[str, Any]  # Empty where there is none, or none of this run.
    resources: pd.DataFrame
    problems: tuple[Problem, ...]


def load_run(folder: Path) -> RunLog:
    """Read a run. What is broken is left out, a row or a cell of it, and named in `problems`.

    A row whose clock ran backwards keeps its outcome and loses its times. Where rows of several runs are mixed, those
    of the manifest's session are kept; where none tells, those of the session with most rows.

    Raises:
        LogError: there is no log, or it is one of another schema: the message names the columns that are missing.
    """
    rows = read_log(folder)
    resources, of_resources = load_resources(folder)
    of_log = (problem for problems in rows.problems.values() for problem in problems)
    return RunLog(folder, folder.resolve().name, _frames(rows), rows.manifest, resources, (*of_log, *of_resources))


def load_runs(folders: Sequence[Path]) -> tuple[RunLog, ...]:
    """Read several runs; those whose folders are called alike are named by as much of their paths as tells them apart.

    Raises:
        LogError: as for `load_run`.
    """
    names = _names([folder.resolve() for folder in folders])
    return tuple(replace(load_run(folder), name=name) for folder, name in zip(folders, names, strict=True))


def _names(folders: Sequence[Path]) -> list[str]:
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
    """A column for pandas: milliseconds as float64, all else as Int64."""
    if name.endswith("_ms"):
        return pd.Series(np.where(numbers.known, numbers.whole / 1e6, np.nan))
    return pd.Series(pd.arrays.IntegerArray(numbers.whole, ~numbers.known))
