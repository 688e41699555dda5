"""What each axis of a study changes of CPU and memory: the means of the runs, and Welch's t-test on them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bench.report.answers import Floats
from bench.report.content import Part, Prose, Section, Table, numbers, texts
from bench.report.numerals import probability
from bench.report.study_log import Cell, StudyLog
from bench.statistics.comparison import adjust
from bench.statistics.means import Means, compare_means

_FIGURES = {
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
    means: Means


def chapter(study: StudyLog) -> Section | None:
    """The utilisation of cells that differ in one axis alone; None where none was measured in two such cells."""
    parts: list[Part] = []
    for axis in study.axes:
        pairs = list(study.pairs(axis))
        found = [
            _Compared(heading, a, b, means)
            for column, heading in _FIGURES.items()
            if column in study.runs
            for a, b in pairs
            if np.isfinite((means := compare_means(_of(study, a, column), _of(study, b, column))).difference.value)
        ]
        if found:
            parts.append(_table(axis, found))
    if not parts:
        return None
    about = Prose(
        "A run is one figure here, its mean CPU or greatest memory: samples within a run follow one another, and so many "
        "of them would make any difference a sure one. 100 % of CPU is one core busy."
    )
    return Section("utilisation", "What each axis takes of CPU and memory", (about, *parts))


def _of(study: StudyLog, cell: Cell, column: str) -> Floats:
    """A figure of each run of a cell."""
    return np.asarray(study.runs.loc[study.runs["cell"] == cell.key, column], np.float64)


def _table(axis: str, found: Sequence[_Compared]) -> Table:
    adjusted = adjust([each.means.welch_p for each in found])
    rows = tuple(
        (
            each.figure,
            each.b.name,
            each.a.name,
            each.means.mean_b,
            each.means.mean_a,
            each.means.difference,
            probability(p),
        )
        for each, p in zip(found, adjusted, strict=True)
    )
    columns = (
        *texts("figure", "of", "against"),
        *numbers("mean of", "mean against", "difference"),
        *texts("Welch's t"),
    )
    caption = (
        f"By {axis}: the means of the runs, their difference with its 95 % interval, and the p-value of Welch's t-test, "
        f"adjusted for {len(found)} comparisons by Holm's method; – where there are fewer than two runs a side."
    )
    return Table("utilisation_" + re.sub(r"\W+", "_", axis), caption, columns, rows)
