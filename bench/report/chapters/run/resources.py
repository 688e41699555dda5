"""What the run used beside its time: CPU, memory, bytes and GPU of every node."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from bench.report.content import (
    Chapter,
    ChapterPart,
    Chart,
    Column,
    Paragraph,
    ReportTable,
    TableRow,
    Trace,
    join_words,
    number_columns,
    text_columns,
)
from bench.report.data.answered_frames import Floats, column_values, downsampled, seconds_since
from bench.report.output.number_format import number, size
from bench.report.output.stage_styles import series_style

_TITLE = "Resources"
_SHORTEST_S = 0.1  # Between samples: the last one, at the end of a run, may follow at once and show no traffic.


class _Subject(NamedTuple):
    """A figure of resources: what it is drawn from, in which unit, and how a value is told."""

    name: str
    column: str
    factor: float
    axis: str
    noun: str
    tell: Callable[[float], str]


_SUBJECTS = (
    _Subject("cpu", "cpu_percent", 1, "CPU, % of one core", "CPU", lambda value: f"{number(value, 1)} %"),
    _Subject("memory", "rss_bytes", 1e-6, "resident memory, MB", "Memory", lambda value: size(value * 1e6)),
    _Subject("gpu", "gpu_percent", 1, "GPU busy, %", "GPU", lambda value: f"{number(value, 1)} %"),
    _Subject("gpu_memory", "gpu_memory_bytes", 1e-6, "GPU memory, MB", "GPU memory", lambda value: size(value * 1e6)),
    _Subject("gpu_power", "gpu_power_w", 1, "GPU power, W", "GPU power", lambda value: f"{number(value, 0)} W"),
)


def chapter(resources: pd.DataFrame) -> Chapter:
    """Resources over time, by node, and a table of means and peaks."""
    if resources.empty:
        return Chapter("resources", _TITLE, (Paragraph("Not measured: the run has no resources.csv."),))
    parts: list[ChapterPart] = [chart for subject in _SUBJECTS if (chart := _chart(resources, subject))]
    if traffic := _traffic(resources):
        parts.append(traffic)
    parts.append(_table(resources))
    missing = [
        name
        for name, column_values in (("GPU", "gpu_percent"), ("TCP bytes", "bytes_in"))
        if not resources[column_values].notna().any()
    ]
    if missing:
        parts.append(Paragraph(f"Not measured: {join_words(missing)}."))
    return Chapter("resources", _TITLE, tuple(parts))


def _at_s(resources: pd.DataFrame, rows: pd.DataFrame) -> Floats:
    return seconds_since(rows, "at_ns", int(resources["at_ns"].min()))


def _chart(resources: pd.DataFrame, subject: _Subject) -> Chart | None:
    """A subject over time, a line a node; None where no node was measured."""
    known = resources[resources[subject.column].notna()]
    if known.empty:
        return None
    traces, told = [], []
    for place, (node, rows) in enumerate(known.groupby("node", sort=False)):
        values = column_values(rows, subject.column) * subject.factor
        told.append(f"{node} {subject.tell(float(values.mean()))}")
        shown = downsampled(rows)
        traces.append(
            _line(place, str(node), _at_s(resources, shown), column_values(shown, subject.column) * subject.factor)
        )
    caption = f"{subject.noun} over time. Means: {', '.join(told)}."
    return Chart(f"resources_{subject.name}", caption, tuple(traces), _layout(subject.axis), height=280)


def _traffic(resources: pd.DataFrame) -> Chart | None:
    """TCP bytes a second, in and out, of the nodes that have any."""
    traces, told = [], []
    known = resources[resources["bytes_in"].notna() & resources["bytes_out"].notna()]
    for place, (node, of_node) in enumerate(known.groupby("node", sort=False)):
        at_s = _at_s(resources, of_node)
        apart = np.diff(at_s, prepend=-np.inf) > _SHORTEST_S
        rows = downsampled(of_node[apart])
        at_s = _at_s(resources, rows)
        if len(rows) < 2 or not (rows[["bytes_in", "bytes_out"]].iloc[-1] > 0).any():  # noqa: PLR2004  A rate has two ends.
            continue
        for way, symbol in (("in", "circle"), ("out", "diamond-open")):
            values = column_values(rows, f"bytes_{way}")
            line = _line(place, f"{node} {way}", at_s[1:], np.diff(values) / np.diff(at_s) / 1e6)
            traces.append(line | {"mode": "lines+markers", "marker": {"symbol": symbol, "size": 5}})
        told.append(
            f"{node} {size(float(of_node['bytes_in'].iloc[-1]))} in, {size(float(of_node['bytes_out'].iloc[-1]))} out"
        )
    if not traces:
        return None
    caption = f"TCP traffic of each process. In all: {'; '.join(told)}."
    return Chart("resources_traffic", caption, tuple(traces), _layout("TCP bytes a second, MB/s"), height=280)


def _line(place: int, name: str, at_s: Floats, values: Floats) -> Trace:
    colour, dash = series_style(place)
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": at_s, "y": values,
        "line": {"color": colour, "dash": dash, "width": 1.8},
        "hovertemplate": f"{name}: %{{y:.2f}} at %{{x:.0f}} s<extra></extra>",
    }  # fmt: skip


def _layout(axis: str) -> Trace:
    return {
        "xaxis": {"title": {"text": "time since sampling began, s"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": axis}, "rangemode": "tozero"},
        "showlegend": True,
    }


def _table(resources: pd.DataFrame) -> ReportTable:
    rows: list[TableRow] = []
    for node, of_node in resources.groupby("node", sort=False):
        figures = [
            value
            for name, factor in (("cpu_percent", 1), ("rss_bytes", 1e-6), ("gpu_percent", 1), ("gpu_power_w", 1))
            for value in _mean_and_peak(column_values(of_node, name) * factor)
        ]
        received, sent = (_last(column_values(of_node, name)) / 1e6 for name in ("bytes_in", "bytes_out"))
        rows.append((str(node), len(of_node), *figures, received, sent))
    columns = (
        *text_columns("node"),
        *number_columns(
            "samples", "CPU % mean", "CPU % peak", "memory MB mean", "memory MB peak", "GPU % mean", "GPU % peak",
            "GPU W mean", "GPU W peak", "TCP in MB", "TCP out MB",
        ),
    )  # fmt: skip
    caption = "What each node used: mean and peak of its samples. 100 % of CPU is one core busy."
    return ReportTable("resources", caption, *_measured(columns, rows))


def _measured(columns: tuple[Column, ...], rows: list[TableRow]) -> tuple[tuple[Column, ...], tuple[TableRow, ...]]:
    """Without the columns in which nothing was measured."""
    kept = [
        place
        for place in range(len(columns))
        if any(not (isinstance(cell := row[place], float) and np.isnan(cell)) for row in rows)
    ]
    return tuple(columns[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in rows)


def _mean_and_peak(values: Floats) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return (float(known.mean()), float(known.max())) if len(known) else (float("nan"), float("nan"))


def _last(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")
