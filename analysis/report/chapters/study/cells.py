"""The setup and runs of a study, the results of its cells, the effect of each axis, and the capacity search."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.run_log import NOT_SENT
from analysis.report.chapters.comparisons import runs as comparison
from analysis.report.chapters.run.distribution import SEED
from analysis.report.chapters.run.provenance import manifest_rows, plain_text
from analysis.report.chapters.traces import axis_from_zero, not_measured, points
from analysis.report.content import Caution, CellValue, Chapter, ChapterPart, Chart, Paragraph, ReportTable, TableRow
from analysis.report.data.report_input import DEFAULT_VALUE, StudyLog
from analysis.report.output.number_format import milliseconds, number
from analysis.report.stage_styles import SERIES, TOTAL_COLOUR
from analysis.statistics.description import describe
from analysis.study.measurement import INVALID_MEANING
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import NOTE

_MAX_SENTENCES = 40  # Of each axis; its table has all comparisons.
_ORIGIN_COLUMNS = {  # Shares of the frames, for studies in which frames were not sent.
    Outcome.REUSED: "reused %",
    Outcome.ANSWERED_LOCALLY: "local %",
    "frames_sent": "sent %",
}
_RUN_COLUMNS = (
    ("throughput_hz", "results a second"),
    ("worker_cpu_percent", "worker CPU %"),
    ("worker_rss_mb", "worker MB"),
    ("vehicle_cpu_percent", "vehicle CPU %"),
    ("broker_cpu_percent", "broker CPU %"),
    ("gpu_percent", "GPU busy %"),
)


def provenance(study: StudyLog) -> Chapter:
    """Returns the axes and the manifest of the study."""
    axes = study.manifest.get("axes")
    parts: list[ChapterPart] = []
    if isinstance(axes, Mapping):
        lists = ((axis, values if isinstance(values, list) else [values]) for axis, values in axes.items())
        rows = [(axis, ", ".join(map(_axis_text, values))) for axis, values in lists]
        parts.append(ReportTable("axes", "The axes of the study and their values.", ("axis", "values"), rows))
    manifest = {name: value for name, value in study.manifest.items() if name not in {"axes", "name", "kind"}}
    parts.append(ReportTable("manifest", "Manifest of the study.", ("what", "value"), list(manifest_rows(manifest))))
    return Chapter("provenance", "Setup", tuple(parts), is_collapsed=True)


def _axis_text(value: Any) -> str:
    """Formats a value of an axis; a link becomes its name."""
    if value is None:
        return DEFAULT_VALUE
    return plain_text(value.get("name", value) if isinstance(value, Mapping) else value)


def runs(study: StudyLog) -> Chapter:
    """Returns the failed and skipped runs with their reasons, and the validity of the runs."""
    states = study.runs["state"].value_counts()
    listed = ", ".join(f"{count:,} {state}" for state, count in states.items())
    parts: list[ChapterPart] = [Paragraph(f"{len(study.runs):,} runs of {len(study.cells):,} cells: {listed}.")]
    parts += [Caution(str(problem)) for problem in study.problems]
    others = study.runs[study.runs["state"] != "done"]
    if len(others):
        rows = _run_rows(study, others, "state", "reason")
        headings = (*_RUN_IDENTITY, "state", "reason")
        parts.append(ReportTable("not_done", "Runs without results, and the reasons.", headings, rows))
    judged = study.runs[study.runs["validity"].notna()] if "validity" in study.runs else study.runs.iloc[:0]
    if len(judged):
        valid = int((judged["validity"] == "VALID").sum())
        parts.append(Paragraph(f"{valid:,} of {len(judged):,} runs are VALID by MLPerf's rules of their scenarios."))
        parts += [Caution(INVALID_MEANING)] if valid < len(judged) else []
        rows = _run_rows(study, judged, "validity", "validity_reason")
        headings = (*_RUN_IDENTITY, "verdict", "reason")
        caption = "Validity of each run, with reasons"
        parts.append(ReportTable("validity", caption, headings, rows, is_collapsed=True))
    return Chapter("runs", "How the runs ended", tuple(parts))


_RUN_IDENTITY = ("cell", "repetition")


def _run_rows(study: StudyLog, runs: pd.DataFrame, result: str, reason: str) -> tuple[TableRow, ...]:
    """Returns cell, repetition, result and reason of each run, from the columns `result` and `reason`."""
    reasons = (runs[reason] if reason in runs else pd.Series("", runs.index)).fillna("")
    names = runs["cell"].astype(str).map(study.cell_names)
    return tuple(zip(names, runs["repetition"].tolist(), runs[result].astype(str), reasons.astype(str), strict=True))


def results(study: StudyLog) -> Chapter:
    """Returns the results of each cell over its repetitions."""
    done = study.runs[study.runs["state"] == "done"]
    if done.empty:
        return not_measured("results", "Results", "no run was done")
    parts: list[ChapterPart] = [_results_table(study, done)]
    for column, name, axis in (
        ("total_p50_ms", "cells_p50", "median total of a run, ms"),
        ("throughput_hz", "cells_throughput", "frames with a result per second"),
    ):
        if column in done and done[column].notna().any():
            parts.append(_run_chart(study, done, column, name, axis))
    if len(study.results):
        parts += _latency_charts(study, done)
    return Chapter("results", "Results", tuple(parts))


def _results_table(study: StudyLog, done: pd.DataFrame) -> ReportTable:
    shown = [(name, heading) for name, heading in _RUN_COLUMNS if name in done and done[name].notna().any()]
    origins = _ORIGIN_COLUMNS if _has_unsent(study) else {}
    rows: list[TableRow] = []
    for cell in study.cells:
        cell_runs = done[done["cell"] == cell.key]
        group = study.group(cell)
        totals = describe(group.results["total_ms"] if len(group.results) else [], seed=SEED)
        shares = study.shares(cell)
        by_origin = (100 * shares[name] for name in origins)
        means = [float(cell_runs[name].mean()) if len(cell_runs) else float("nan") for name, _ in shown]
        percentiles = (totals.p50, totals.p95, totals.p99)
        row: TableRow = (cell.name, len(cell_runs), totals.count, 100 * group.result_share, *by_origin)
        rows.append((*row, *percentiles, *means))
    shares_shown = ("with a result %", *origins.values())
    headings = ("cell", "runs", "frames", *shares_shown, "p50 ms", "p95 ms", "p99 ms", *(name for _, name in shown))
    caption = (
        "Total latency of the frames of each cell that got a result, over all repetitions, with 95 % intervals for these "
        f"runs, and means over the runs. Shares: of the frames read. {NOTE}"
    )
    return ReportTable("results", caption, headings, rows)


def _has_unsent(study: StudyLog) -> bool:
    """Returns whether a cell has frames with a result that were not sent."""
    return any(study.shares(cell)[outcome] > 0 for cell in study.cells for outcome in NOT_SENT)


def _run_chart(study: StudyLog, done: pd.DataFrame, column: str, name: str, axis: str) -> Chart:
    """Shows one point per run in one line per cell, to compare the spread of repetitions with that of cells."""
    known = done[done[column].notna()]
    names = known["cell"].astype(str).map(study.cell_names)
    traces = []
    for index, (repetition, rows) in enumerate(known.groupby("repetition")):
        colour = SERIES[index % len(SERIES)]
        marker = {"size": 10, "color": colour, "symbol": index % 8, "line": {"width": 1, "color": "#ffffff"}}
        values, labels = rows[column].to_numpy(np.float64), names[rows.index].tolist()
        traces.append(points(f"repetition {repetition}", values, labels, marker, "%{y}: %{x:.2f}"))
    means = known.groupby("cell")[column].mean()
    order = [cell for cell in study.cells if cell.key in means.index]
    cell_names = [cell.name for cell in order]
    marker = {"symbol": "line-ns", "size": 18, "line": {"width": 2.5, "color": TOTAL_COLOUR}}
    cell_means = [float(means[cell.key]) for cell in order]
    traces.append(points("mean", cell_means, cell_names, marker, "mean of %{y}: %{x:.2f}"))
    best = (min if column.endswith("_ms") else max)(order, key=lambda cell: float(means[cell.key]))
    mean = float(means[best.key])
    best_text = milliseconds(mean) if column.endswith("_ms") else f"{number(mean)} per second"
    caption = f"{axis.capitalize()}: each point is a run, the bar is the mean. Best: {best.name}, {best_text}, mean of its runs."
    layout = {
        "xaxis": axis_from_zero(axis),
        "yaxis": {"autorange": "reversed", "type": "category", "categoryorder": "array", "categoryarray": cell_names},
    }
    return Chart(name, caption, tuple(traces), layout, height=130 + 34 * len(order))


def _latency_charts(study: StudyLog, done: pd.DataFrame) -> Iterator[Chart]:
    """Shows the latency of each cell against its load, and against the bytes of a frame and its result on the link."""
    rates = done.reindex(columns=["cell", "throughput_hz"]).groupby("cell")["throughput_hz"].mean()
    yield _latency_chart(study, "cells_load", rates, "load", "frames with a result per second")
    sizes_kb = study.results[["bytes_up", "bytes_down"]].astype(float).sum(axis="columns", min_count=2) / 1e3
    title = "size of frame and result together, kB, mean of the frames with a result"
    yield _latency_chart(study, "cells_bytes", sizes_kb.groupby(study.results["cell"]).mean(), "bytes", title)


def _latency_chart(study: StudyLog, name: str, values: pd.Series, what: str, title: str) -> Chart:
    """Shows the median and the 95th percentile of each cell against a value of the cell."""
    frames = {cell.key: study.group(cell).results for cell in study.cells}
    shown = [cell for cell in study.cells if len(frames[cell.key]) and np.isfinite(values.get(cell.key, np.nan))]
    traces = []
    for index, (percent, symbol) in enumerate(((50, "circle"), (95, "triangle-up"))):
        marker = {"size": 10, "color": SERIES[index], "symbol": symbol, "line": {"width": 1, "color": "#ffffff"}}
        y = [float(np.percentile(frames[cell.key]["total_ms"], percent)) for cell in shown]
        hover = f"%{{customdata}}<br>p{percent} %{{y:.2f}} ms at %{{x:.2f}}"
        x = [float(values[cell.key]) for cell in shown]
        traces.append(points(f"p{percent}", x, y, marker, hover, customdata=[cell.name for cell in shown]))
    layout = {"xaxis": axis_from_zero(title), "yaxis": axis_from_zero("total, ms"), "hovermode": "closest"}
    caption = f"Latency against {what}: p50 and p95 of each cell's total latency. Point at a mark for its cell."
    return Chart(name, caption, tuple(traces), layout, height=320)


def axes(study: StudyLog) -> Chapter:
    """Compares the cells that differ only in one axis, for each axis."""
    parts: list[ChapterPart] = []
    for axis in study.axes:
        pairs = [(study.group(a), study.group(b)) for a, b in study.pairs(axis)]
        answered = [(a, b) for a, b in pairs if len(a.results) and len(b.results)]
        if not answered:
            parts.append(Paragraph(f"{axis}: not measured, because no two cells that differ only in it have results."))
            continue
        found = comparison.compare_totals(answered, in_blocks=True)
        parts += comparison.sentences(found)[:_MAX_SENTENCES]
        file = re.sub(r"\W+", "_", axis)
        parts.append(comparison.table(found, f"by_{file}"))
        parts.append(comparison.difference_chart(found, f"differences_{file}"))
    if not parts:
        parts = [Paragraph("Not compared: the study has one cell.")]
    parts += [Paragraph(text) for text in (*study.consequences(), study.recording_note) if text]
    return Chapter("comparison", "Effect of each axis", tuple(parts))


def capacity(study: StudyLog) -> Chapter:
    """Returns the steps of the search for the maximum number of vehicles."""
    names, steps = study.cell_names, study.capacity
    columns = [column for column in steps.columns if column not in {"study", "cell"}]
    rows = [
        (names.get(str(row["cell"]), str(row["cell"])), *(_cell(row[column]) for column in columns))
        for _, row in steps.iterrows()
    ]
    caption = "Steps of the search for the maximum number of vehicles."
    headings = ("cell", *(column.replace("_", " ") for column in columns))
    table = ReportTable("capacity", caption, headings, rows)
    return Chapter("capacity", "Vehicle capacity", (table,))


def _cell(value: Any) -> CellValue:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return None
    return int(value) if float(value).is_integer() else float(value)
