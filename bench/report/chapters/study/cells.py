"""A study's own chapters: its runs, the results of its cells, and what each axis changes."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bench.report.chapters.comparisons import runs as comparison
from bench.report.chapters.run.provenance import facts, plain_text
from bench.report.chapters.run.stage_statistics import SEED
from bench.report.content import (
    Caution,
    Cell,
    Chart,
    Column,
    Folded,
    Kind,
    Part,
    Prose,
    Row,
    Section,
    Table,
    numbers,
    texts,
)
from bench.report.data.study_log import AS_SAID, StudyLog
from bench.report.output.number_format import milliseconds, number
from bench.report.output.stage_styles import TOTAL, series
from bench.statistics.description import describe
from shared.runlog.percentiles import NOTE

_MOST_SENTENCES = 40  # A larger matrix is read in its tables.
_RUN_FIGURES = (
    ("throughput_hz", "answered a second"),
    ("worker_cpu_percent", "worker CPU %"),
    ("worker_rss_mb", "worker MB"),
    ("vehicle_cpu_percent", "vehicle CPU %"),
    ("broker_cpu_percent", "broker CPU %"),
    ("gpu_percent", "GPU busy %"),
)


def provenance(study: StudyLog) -> Section:
    """What the study's manifest says, and its axes."""
    axes = study.manifest.get("axes")
    told = {name: value for name, value in study.manifest.items() if name not in {"axes", "name", "kind"}}
    parts: list[Part] = []
    if isinstance(axes, Mapping):
        values = tuple(
            (axis, ", ".join(map(_told, of_axis if isinstance(of_axis, list) else [of_axis])))
            for axis, of_axis in axes.items()
        )
        parts.append(Table("axes", "The axes of the study and their values.", texts("axis", "values"), values))
    parts.append(
        Table("provenance", "What the manifest of the study says.", texts("what", "value"), tuple(facts(told)))
    )
    return Section("provenance", "What ran", tuple(parts))


def _told(value: Any) -> str:
    """A value of an axis: a link by its name, and what the study or the scenario says where there is none."""
    if value is None:
        return AS_SAID
    return plain_text(value.get("name", value) if isinstance(value, Mapping) else value)


def runs(study: StudyLog) -> Section:
    """How the runs ended: those that failed or were skipped, with their reasons, and those that are not valid."""
    states = study.runs["state"].value_counts()
    told = ", ".join(f"{count:,} {state}" for state, count in states.items())
    parts: list[Part] = [Prose(f"{len(study.runs):,} runs of {len(study.cells):,} cells: {told}.")]
    parts += [Caution(str(missing)) for missing in study.missing]
    names = {cell.key: cell.name for cell in study.cells}
    others = study.runs[study.runs["state"] != "done"]
    if len(others):
        rows = tuple(
            (names[str(row["cell"])], int(row["repetition"]), str(row["state"]), _text(row.get("reason")))
            for _, row in others.iterrows()
        )
        columns = (*texts("cell"), *numbers("repetition"), *texts("state", "reason"))
        parts.append(Table("not_done", "The runs that gave no figures, and why.", columns, rows))
    judged = study.runs[study.runs["validity"].notna()] if "validity" in study.runs else study.runs.iloc[:0]
    if len(judged):
        rows = tuple(
            (names[str(row["cell"])], int(row["repetition"]), str(row["validity"]), _text(row.get("validity_reason")))
            for _, row in judged.iterrows()
        )
        columns = (*texts("cell"), *numbers("repetition"), *texts("verdict", "reason"))
        valid = int((judged["validity"] == "VALID").sum())
        parts.append(Prose(f"By the rules of its scenario, {valid:,} of {len(judged):,} runs are VALID."))
        table = Table("validity", "Whether each run is valid by the rules of its scenario.", columns, rows)
        parts.append(Folded("Each run's verdict, and why", table))
    return Section("runs", "How the runs ended", tuple(parts))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def results(study: StudyLog) -> Section:
    """The figures of each cell, over its repetitions."""
    done = study.runs[study.runs["state"] == "done"]
    if done.empty:
        return Section("results", "Results", (Prose("Not measured: no run was done."),))
    table = _results(study, done)
    parts: list[Part] = [table]
    for column, name, axis in (
        ("total_p50_ms", "cells_p50", "median total of a run, ms"),
        ("throughput_hz", "cells_throughput", "frames answered a second"),
    ):
        if column in done and done[column].notna().any():
            parts.append(_dots(study, done, column, name, axis))
    return Section("results", "Results", tuple(parts))


def _results(study: StudyLog, done: pd.DataFrame) -> Table:
    shown = [(name, heading) for name, heading in _RUN_FIGURES if name in done and done[name].notna().any()]
    rows: list[Row] = []
    for cell in study.cells:
        of_cell = done[done["cell"] == cell.key]
        side = study.side(cell)
        frames = side.frames
        totals = describe(frames["total_ms"] if len(frames) else [], seed=SEED)
        figures = [float(of_cell[name].mean()) if len(of_cell) else float("nan") for name, _ in shown]
        rows.append(
            (cell.name, len(of_cell), totals.count, 100 * side.answered, totals.p50, totals.p95, totals.p99, *figures)
        )
    columns = (
        *texts("cell"),
        *numbers("runs", "frames", "answered %", "p50 ms", "p95 ms", "p99 ms", *(heading for _, heading in shown)),
    )
    caption = (
        "Each cell: totals of the answered frames of its measured time, all repetitions together, with 95 % intervals "
        f"(for these runs); beside them the means of the runs. Answered: of all frames that its runs read. {NOTE}"
    )
    return Table("results", caption, columns, tuple(rows))


def _dots(study: StudyLog, done: pd.DataFrame, column: str, name: str, axis: str) -> Chart:
    """One point a run, a line a cell: how far repetitions lie apart against how far cells do."""
    names = {cell.key: cell.name for cell in study.cells}
    known = done[done[column].notna()]
    traces = []
    for place, (repetition, rows) in enumerate(known.groupby("repetition")):
        colour, _ = series(place)
        traces.append({
            "type": "scatter", "mode": "markers", "name": f"repetition {repetition}",
            "x": rows[column].to_numpy(np.float64), "y": [names[str(key)] for key in rows["cell"]],
            "marker": {"size": 10, "color": colour, "symbol": place % 8, "line": {"width": 1, "color": "#ffffff"}},
            "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
        })  # fmt: skip
    means = known.groupby("cell")[column].mean()
    order = [cell for cell in study.cells if cell.key in means.index]
    traces.append({
        "type": "scatter", "mode": "markers", "name": "mean", "x": [float(means[cell.key]) for cell in order],
        "y": [cell.name for cell in order], "marker": {"symbol": "line-ns", "size": 18, "line": {"width": 2.5, "color": TOTAL}},
        "hovertemplate": "mean of %{y}: %{x:.2f}<extra></extra>",
    })  # fmt: skip
    leading = (min if column.endswith("_ms") else max)(order, key=lambda cell: float(means[cell.key]))
    most = float(means[leading.key])
    best = milliseconds(most) if column.endswith("_ms") else f"{number(most)} a second"
    caption = f"{axis.capitalize()}: a point is a run, the bar is their mean. Best: {leading.name}, {best}."
    layout = {
        "xaxis": {"title": {"text": axis}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "type": "category", "categoryorder": "array",
                  "categoryarray": [cell.name for cell in order]},
        "showlegend": True,
    }  # fmt: skip
    return Chart(name, caption, tuple(traces), layout, height=130 + 34 * len(order))


def axes(study: StudyLog) -> Section:
    """What each axis changes: cells that differ in it alone, compared."""
    title = "What each axis changes"
    parts: list[Part] = []
    for axis in study.axes:
        sides = [(study.side(a), study.side(b)) for a, b in study.pairs(axis)]
        known = [(a, b) for a, b in sides if len(a.frames) and len(b.frames)]
        if not known:
            parts.append(Prose(f"{axis}: not measured: no two cells that differ in it alone were both answered."))
            continue
        found = comparison.compared(known, in_blocks=True)
        parts += comparison.told(found)[:_MOST_SENTENCES]
        file = re.sub(r"\W+", "_", axis)
        parts.append(comparison.table(found, f"by_{file}"))
        parts.append(comparison.differences(found, f"differences_{file}"))
    if not parts:
        parts = [Prose("Not compared: the study has one cell.")]
    return Section("comparison", title, tuple(parts))


def capacity(study: StudyLog) -> Section:
    """The search for how many vehicles fit, step by step."""
    names = {cell.key: cell.name for cell in study.cells}
    steps = study.capacity
    columns = [column for column in steps.columns if column not in {"study", "cell"}]
    kinds = [
        Column(
            column.replace("_", " "),
            Kind.NUMBER if pd.api.types.is_numeric_dtype(steps[column]) and steps[column].dtype != bool else Kind.TEXT,
        )
        for column in columns
    ]
    rows = tuple(
        (names.get(str(row["cell"]), str(row["cell"])), *(_cell(row[column]) for column in columns))
        for _, row in steps.iterrows()
    )
    table = Table("capacity", "Every step of the search.", (*texts("cell"), *kinds), rows)
    return Section("capacity", "How many vehicles fit", (table,))


def _cell(value: Any) -> Cell:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return None
    return int(value) if float(value).is_integer() else float(value)
