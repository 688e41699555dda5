"""What each axis of a study changes of CPU and memory: one figure a run, tested like the latencies."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from bench.report.chapters.comparisons.runs import tested
from bench.report.content import Part, Prose, Section, Table, numbers, texts
from bench.report.data.study_log import Cell, StudyLog
from bench.report.output.number_format import probability
from bench.statistics.run_test import RunTest, compare_runs

_FIGURES = {  # Columns of the runs' table.
    "worker_cpu_percent": "worker CPU %",
    "worker_rss_mb": "worker MB",
    "vehicle_cpu_percent": "vehicle CPU %",
    "vehicle_rss_mb": "vehicle MB",
    "broker_cpu_percent": "broker CPU %",
    "gpu_percent": "GPU busy %",
    "gpu_memory_mb": "GPU MB",
}


class _Compared(NamedTuple):
    figure: str
    a: Cell
    b: Cell
    test: RunTest


def chapter(study: StudyLog) -> Section | None:
    """The runs of cells that differ in one axis alone; None where nothing was measured in two such cells."""
    parts: list[Part] = [_table(axis, found) for axis in study.axes if (found := _found(study, axis))]
    if not parts:
        return None
    about = Prose(
        "A run is one figure here, its mean CPU or greatest memory: samples within a run follow one another, and so many "
        "of them would make any difference look certain. 100 % of CPU is one core busy."
    )
    return Section("utilisation", "CPU and memory by axis", (about, *parts))


def _found(study: StudyLog, axis: str) -> list[_Compared]:
    """The figures that were measured in both cells of a pair that differs in the axis alone."""
    pairs = list(study.pairs(axis))
    sides = {
        (heading, a.key, b.key): (a, b, _of(study, a, column), _of(study, b, column))
        for column, heading in _FIGURES.items()
        if column in study.runs
        for a, b in pairs
    }
    known = {key: side for key, side in sides.items() if all(figures.notna().any() for figures in side[2:])}
    tests = compare_runs([(of_a, of_b) for _, _, of_a, of_b in known.values()], in_blocks=True)
    return [
        _Compared(heading, a, b, test)
        for ((heading, _, _), (a, b, _, _)), test in zip(known.items(), tests, strict=True)
    ]


def _of(study: StudyLog, cell: Cell, column: str) -> pd.Series:
    """A figure of each run of a cell, by its repetition."""
    runs = study.runs[study.runs["cell"] == cell.key]
    return runs.astype({column: np.float64}).groupby("repetition")[column].mean()


def _table(axis: str, found: Sequence[_Compared]) -> Table:
    rows = tuple(
        (
            each.figure,
            each.b.name,
            each.a.name,
            f"{each.test.b.count} and {each.test.a.count}",
            each.test.b.mean,
            each.test.b.std,
            each.test.a.mean,
            each.test.a.std,
            each.test.difference,
            each.test.verdict,
            probability(each.test.p_value),
        )
        for each in found
    )
    columns = (
        *texts("figure", "of", "against", "runs"),
        *numbers("mean of", "± of", "mean against", "± against", "difference"),
        *texts("verdict", "p"),
    )
    caption = (
        f"By {axis}: the means of the runs, ± their standard deviations, and the difference. "
        f"{tested(each.test.method for each in found)}"
    )
    return Table("utilisation_" + re.sub(r"\W+", "_", axis), caption, columns, rows)
