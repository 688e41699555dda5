"""The effect of each axis of a study on CPU, memory and GPU, tested with one value per run."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.report.chapters.comparisons.runs import describe_tests
from analysis.report.content import Chapter, ChapterPart, Paragraph, ReportTable, TableRow
from analysis.report.data.report_input import ReportedCell, StudyLog
from analysis.report.output.number_format import probability
from analysis.statistics.comparison import RunTest, compare_runs

_RESOURCES = {  # Columns of the table of runs, with their headings.
    "worker_cpu_percent": "worker CPU %",
    "worker_rss_mb": "worker MB",
    "vehicle_cpu_percent": "vehicle CPU %",
    "vehicle_rss_mb": "vehicle MB",
    "broker_cpu_percent": "broker CPU %",
    "gpu_percent": "GPU busy %",
    "gpu_memory_mb": "GPU MB",
}


class _ResourceComparison(NamedTuple):
    resource: str
    a: ReportedCell
    b: ReportedCell
    test: RunTest


def chapter(study: StudyLog) -> Chapter | None:
    """Compares cells that differ only in one axis; None if no resource was measured in two such cells."""
    parts: list[ChapterPart] = [_table(axis, found) for axis in study.axes if (found := _compare(study, axis))]
    if not parts:
        return None
    introduction = Paragraph(
        "Each run contributes one value: its mean CPU or its maximum memory. The samples within a run are correlated and "
        "cannot be tested as independent values. 100 % CPU means one busy core."
    )
    return Chapter("utilisation", "CPU and memory by axis", (introduction, *parts))


def _compare(study: StudyLog, axis: str) -> list[_ResourceComparison]:
    """Compares the resources measured in both cells of each pair that differs only in `axis`."""
    candidates = [
        (heading, a, b, _run_values(study, a, column), _run_values(study, b, column))
        for column, heading in _RESOURCES.items()
        if column in study.runs
        for a, b in study.pairs(axis)
    ]
    measured = [each for each in candidates if all(values.notna().any() for values in each[3:])]
    tests = compare_runs([(values_a, values_b) for *_, values_a, values_b in measured], in_blocks=True)
    return [_ResourceComparison(heading, a, b, test) for (heading, a, b, *_), test in zip(measured, tests, strict=True)]


def _run_values(study: StudyLog, cell: ReportedCell, column: str) -> pd.Series:
    """Returns the value of each run of a cell, indexed by repetition."""
    runs = study.runs[study.runs["cell"] == cell.key]
    return runs.astype({column: np.float64}).groupby("repetition")[column].mean()


def _table(axis: str, found: Sequence[_ResourceComparison]) -> ReportTable:
    rows: list[TableRow] = []
    for resource, a, b, test in found:
        counts = f"{test.b.count} and {test.a.count}"
        sides: TableRow = tuple(value for side in (test.b, test.a) for value in (side.mean, side.std))
        outcome: TableRow = (test.difference, test.verdict, probability(test.p_value))
        rows.append((resource, b.name, a.name, counts, *sides, *outcome))
    headings = (
        *("resource", "compared", "baseline", "runs", "compared mean", "compared ±", "baseline mean", "baseline ±"),
        *("difference", "verdict", "p"),
    )
    caption = (
        f"Effect of {axis}: means of the runs, ± their standard deviations, and the difference. "
        f"{describe_tests(each.test.method for each in found)}"
    )
    return ReportTable("utilisation_" + re.sub(r"\W+", "_", axis), caption, headings, rows)
