"""CPU, memory, traffic and GPU of every node of a run."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from bench.report.chapters.traces import axis_from_zero, line, not_measured
from bench.report.content import Chapter, ChapterPart, Chart, Paragraph, ReportTable, TableRow, Trace, join_words
from bench.report.data.answered_frames import column_values, downsampled, seconds_since
from bench.report.output.number_format import number, size
from bench.report.output.stage_styles import series_style
from bench.statistics.bootstrap import Floats

_TITLE = "Resources"
_MIN_INTERVAL_S = 0.1  # The final sample of a run may follow the previous one immediately, without traffic in between.


class _Resource(NamedTuple):
    """A resource and its presentation."""

    name: str
    column: str
    factor: float  # From the unit of the column to the unit of the axis.
    axis: str
    noun: str
    format: Callable[[float], str]


_RESOURCES = (
    _Resource("cpu", "cpu_percent", 1, "CPU, % of one core", "CPU", lambda value: f"{number(value, 1)} %"),
    _Resource("memory", "rss_bytes", 1e-6, "resident memory, MB", "Memory", lambda value: size(value * 1e6)),
    _Resource("gpu", "gpu_percent", 1, "GPU busy, %", "GPU", lambda value: f"{number(value, 1)} %"),
    _Resource("gpu_memory", "gpu_memory_bytes", 1e-6, "GPU memory, MB", "GPU memory", lambda value: size(value * 1e6)),
    _Resource("gpu_power", "gpu_power_w", 1, "GPU power, W", "GPU power", lambda value: f"{number(value, 0)} W"),
)


def chapter(resources: pd.DataFrame) -> Chapter:
    """Returns the resources of each node over time, and a table of means and peaks."""
    if resources.empty:
        return not_measured("resources", _TITLE, "the run has no resources.csv")
    parts: list[ChapterPart] = [chart for resource in _RESOURCES if (chart := _chart(resources, resource))]
    if traffic := _traffic(resources):
        parts.append(traffic)
    parts.append(_table(resources))
    missing = [
        name
        for name, column in (("GPU", "gpu_percent"), ("TCP bytes", "bytes_in"))
        if not resources[column].notna().any()
    ]
    if missing:
        parts.append(Paragraph(f"Not measured: {join_words(missing)}."))
    return Chapter("resources", _TITLE, tuple(parts))


def _times_s(resources: pd.DataFrame, rows: pd.DataFrame) -> Floats:
    return seconds_since(rows, "at_ns", int(resources["at_ns"].min()))


def _chart(resources: pd.DataFrame, resource: _Resource) -> Chart | None:
    """Shows a resource over time with one line per node; None if it was not measured."""
    measured = resources[resources[resource.column].notna()]
    if measured.empty:
        return None
    traces, means = [], []
    for index, (node, rows) in enumerate(measured.groupby("node", sort=False)):
        values = column_values(rows, resource.column) * resource.factor
        means.append(f"{node} {resource.format(float(values.mean()))}")
        shown = downsampled(rows)
        drawn = column_values(shown, resource.column) * resource.factor
        traces.append(_node_line(index, str(node), _times_s(resources, shown), drawn))
    caption = f"{resource.noun} over time. Means: {', '.join(means)}."
    return Chart(f"resources_{resource.name}", caption, tuple(traces), _layout(resource.axis), height=280)


def _traffic(resources: pd.DataFrame) -> Chart | None:
    """Shows the received and sent TCP bytes per second of each node; None without traffic."""
    traces, totals = [], []
    measured = resources[resources["bytes_in"].notna() & resources["bytes_out"].notna()]
    for index, (node, node_rows) in enumerate(measured.groupby("node", sort=False)):
        is_apart = np.diff(_times_s(resources, node_rows), prepend=-np.inf) > _MIN_INTERVAL_S
        rows = downsampled(node_rows[is_apart])
        times_s = _times_s(resources, rows)
        last = rows[["bytes_in", "bytes_out"]].iloc[-1]
        if len(rows) < 2 or not (last > 0).any():  # noqa: PLR2004  A rate needs two samples.
            continue
        for direction, symbol in (("in", "circle"), ("out", "diamond-open")):
            values = column_values(rows, f"bytes_{direction}")
            trace = _node_line(index, f"{node} {direction}", times_s[1:], np.diff(values) / np.diff(times_s) / 1e6)
            traces.append(trace | {"mode": "lines+markers", "marker": {"symbol": symbol, "size": 5}})
        received, sent = (size(float(node_rows[name].iloc[-1])) for name in ("bytes_in", "bytes_out"))
        totals.append(f"{node} {received} in, {sent} out")
    if not traces:
        return None
    caption = f"TCP traffic of each process. Totals: {'; '.join(totals)}."
    return Chart("resources_traffic", caption, tuple(traces), _layout("TCP traffic, MB/s"), height=280)


def _node_line(index: int, name: str, times_s: Floats, values: Floats) -> Trace:
    colour, dash = series_style(index)
    style = {"color": colour, "dash": dash, "width": 1.8}
    return line(name, times_s, values, style, f"{name}: %{{y:.2f}} at %{{x:.0f}} s")


def _layout(axis: str) -> Trace:
    return {
        "xaxis": axis_from_zero("time since sampling began, s"),
        "yaxis": axis_from_zero(axis),
        "showlegend": True,
    }


def _table(resources: pd.DataFrame) -> ReportTable:
    rows: list[TableRow] = []
    for node, node_rows in resources.groupby("node", sort=False):
        values = [
            value
            for name, factor in (("cpu_percent", 1), ("rss_bytes", 1e-6), ("gpu_percent", 1), ("gpu_power_w", 1))
            for value in _mean_and_peak(column_values(node_rows, name) * factor)
        ]
        received, sent = (_last(column_values(node_rows, name)) / 1e6 for name in ("bytes_in", "bytes_out"))
        rows.append((str(node), len(node_rows), *values, received, sent))
    headings = (
        "node", "samples", "CPU % mean", "CPU % peak", "memory MB mean", "memory MB peak", "GPU % mean", "GPU % peak",
        "GPU W mean", "GPU W peak", "TCP in MB", "TCP out MB",
    )  # fmt: skip
    measured = pd.DataFrame(rows, columns=headings).dropna(axis="columns", how="all")
    caption = "Mean and peak of the samples of each node. 100 % CPU means one busy core."
    return ReportTable("resources", caption, list(measured), list(measured.itertuples(index=False, name=None)))


def _mean_and_peak(values: Floats) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return (float(known.mean()), float(known.max())) if len(known) else (float("nan"), float("nan"))


def _last(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")
