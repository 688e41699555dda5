"""CPU, memory, traffic and GPU of every node of a run."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.report.chapters.traces import axis_from_zero, line, not_measured
from analysis.report.content import Chapter, ChapterPart, Chart, Paragraph, ReportTable, Trace, join_words
from analysis.report.data.answered_frames import column_values, downsampled, seconds_since
from analysis.report.output.number_format import number, size
from analysis.report.stage_styles import series_style
from analysis.statistics.bootstrap import Floats

_TITLE = "Resources"
_MIN_INTERVAL_S = 0.1  # The final sample of a run may follow the previous one immediately, without traffic in between.


class _Resource(NamedTuple):
    """A resource and its presentation."""

    name: str
    column: str
    noun: str
    unit: str
    factor: float = 1.0  # From the unit of the column to `unit`.


_RESOURCES = (
    _Resource("cpu", "cpu_percent", "CPU", "% of one core"),
    _Resource("memory", "rss_bytes", "Memory", "MB", 1e-6),
    _Resource("gpu", "gpu_percent", "GPU busy", "%"),
    _Resource("gpu_memory", "gpu_memory_bytes", "GPU memory", "MB", 1e-6),
    _Resource("gpu_power", "gpu_power_w", "GPU power", "W"),
)


def chapter(resources: pd.DataFrame) -> Chapter:
    """Returns the resources of each node over time, and a table of means and peaks."""
    if resources.empty:
        return not_measured("resources", _TITLE, "the run has no resources.csv")
    charts = (*(_chart(resources, resource) for resource in _RESOURCES), _traffic(resources))
    parts: list[ChapterPart] = [*filter(None, charts), _table(resources)]
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
        mean = float(column_values(rows, resource.column).mean() * resource.factor)
        means.append(f"{node} {number(mean)} {resource.unit.split()[0]}")
        shown = downsampled(rows)
        drawn = column_values(shown, resource.column) * resource.factor
        traces.append(_node_line(index, str(node), _times_s(resources, shown), drawn))
    caption = f"{resource.noun} over time. Means: {', '.join(means)}."
    return _over_time(resource.name, caption, traces, f"{resource.noun}, {resource.unit}")


def _traffic(resources: pd.DataFrame) -> Chart | None:
    """Shows the received and sent TCP bytes per second of each node; None without traffic."""
    traces, totals = [], []
    measured = resources[resources["bytes_in"].notna() & resources["bytes_out"].notna()]
    for index, (node, node_rows) in enumerate(measured.groupby("node", sort=False)):
        is_apart = np.diff(_times_s(resources, node_rows), prepend=-np.inf) > _MIN_INTERVAL_S
        rows = downsampled(node_rows[is_apart])
        times_s = _times_s(resources, rows)
        if len(rows) < 2 or not (rows[["bytes_in", "bytes_out"]].iloc[-1] > 0).any():  # A rate needs two samples.
            continue
        for direction, symbol in (("in", "circle"), ("out", "diamond-open")):
            rates = np.diff(column_values(rows, f"bytes_{direction}")) / np.diff(times_s) / 1e6
            trace = _node_line(index, f"{node} {direction}", times_s[1:], rates)
            traces.append(trace | {"mode": "lines+markers", "marker": {"symbol": symbol, "size": 5}})
        received, sent = (size(float(node_rows[name].iloc[-1])) for name in ("bytes_in", "bytes_out"))
        totals.append(f"{node} {received} in, {sent} out")
    if not traces:
        return None
    caption = f"TCP traffic of each process. Totals: {'; '.join(totals)}."
    return _over_time("traffic", caption, traces, "TCP traffic, MB/s")


def _node_line(index: int, name: str, times_s: Floats, values: Floats) -> Trace:
    colour, dash = series_style(index)
    style = {"color": colour, "dash": dash, "width": 1.8}
    return line(name, times_s, values, style, f"{name}: %{{y:.2f}} at %{{x:.0f}} s")


def _over_time(name: str, caption: str, traces: list[Trace], title: str) -> Chart:
    layout = {"xaxis": axis_from_zero("time since sampling began, s"), "yaxis": axis_from_zero(title)}
    return Chart(f"resources_{name}", caption, tuple(traces), layout, height=280)


def _table(resources: pd.DataFrame) -> ReportTable:
    """Returns means and peaks by node; columns without any value are left out."""
    nodes = resources.astype({each.column: float for each in _RESOURCES}).groupby("node", sort=False)
    columns = {"samples": nodes.size()}
    for each in _RESOURCES:
        heading = f"{each.noun} {each.unit.split()[0]}"
        values = nodes[each.column]
        columns |= {f"{heading} mean": values.mean() * each.factor, f"{heading} peak": values.max() * each.factor}
    columns |= {f"TCP {way} MB": nodes[f"bytes_{way}"].last().astype(float) / 1e6 for way in ("in", "out")}
    measured = pd.DataFrame(columns).dropna(axis="columns", how="all")
    caption = "Mean and peak of the samples of each node. 100 % CPU means one busy core."
    rows = [(str(node), *values) for node, *values in measured.astype(object).itertuples(name=None)]
    return ReportTable("resources", caption, ("node", *measured), rows)
