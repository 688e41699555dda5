"""What each axis of a study changes of latency, CPU and memory: a figure a run, and Welch's t-test on them."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bench.report.answers import Floats
from bench.report.content import Part, Prose, Section, Table, numbers, texts
from bench.report.numerals import probability
from bench.report.study_log import Cell, StudyLog
from bench.statistics.comparison import adjust
from bench.statistics.means import Means, compare_means

_TABLES = {  # By the name of its files, the figures of the runs' table that each tests.
    "run_means": {"total_mean_ms": "mean total ms"},
    "utilisation": {
        "worker_cpu_percent": "worker CPU %",
        "worker_rss_mb": "worker MB",
        "vehicle_cpu_percent": "vehicle CPU %",
        "vehicle_rss_mb": "vehicle MB",
        "broker_cpu_percent": "broker CPU %",
        "gpu_percent": "GPU busy %",
        "gpu_memory_mb": "GPU MB",
    },
}


class _Compared(NamedTuple):
    figure: str
    a: Cell
    b: Cell
    means: Means


def chapter(study: StudyLog) -> Section | None:
    """The runs of cells that differ in one axis alone; None where nothing was measured in two such cells."""
    parts: list[Part] = []
    for axis in study.axes:
        for name, figures in _TABLES.items():
            if found := _found(study, axis, figures):
                parts.append(_table(name, axis, found))
    if not parts:
        return None
    about = Prose(
        "A run is one figure here, its mean total, mean CPU or greatest memory: frames and samples within a run follow one "
        "another, and so many of them would make any difference a sure one. 100 % of CPU is one core busy."
    )
    return Section("utilisation", "What each axis changes, run by run", (about, *parts))


def _found(study: StudyLog, axis: str, figures: Mapping[str, str]) -> list[_Compared]:
    """What was measured in both cells of a pair that differs in the axis alone."""
    pairs = list(study.pairs(axis))
    return [
        _Compared(heading, a, b, means)
        for column, heading in figures.items()
        if column in study.runs
        for a, b in pairs
        if np.isfinite((means := compare_means(_of(study, a, column), _of(study, b, column))).difference.value)
    ]


def _of(study: StudyLog, cell: Cell, column: str) -> Floats:
    """A figure of each run of a cell."""
    return np.asarray(study.runs.loc[study.runs["cell"] == cell.key, column], np.float64)


def _table(name: str, axis: str, found: Sequence[_Compared]) -> Table:
    adjusted = adjust([each.means.welch_p for each in found])
    rows = tuple(
        (
            each.figure,
            each.b.name,
            each.a.name,
            f"{each.means.b.count} and {each.means.a.count}",
            each.means.b.mean,
            each.means.b.std,
            each.means.a.mean,
            each.means.a.std,
            each.means.difference,
            probability(p),
        )
        for each, p in zip(found, adjusted, strict=True)
    )
    columns = (
        *texts("figure", "of", "against", "runs"),
        *numbers("mean of", "± of", "mean against", "± against", "difference"),
        *texts("Welch's t"),
    )
    caption = (
        f"By {axis}: the means of the runs, ± their standard deviations, the difference with its 95 % interval, and the p-value of Welch's t-test, "
        f"adjusted for {len(found)} comparisons by Holm's method; – where there are fewer than two runs a side."
    )
    return Table(f"{name}_" + re.sub(r"\W+", "_", axis), caption, columns, rows)
