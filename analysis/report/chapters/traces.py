"""Builds the traces, axes and layouts that several charts share, in the format of Plotly."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.report.content import Chapter, Paragraph, Trace
from analysis.report.stage_styles import STAGES, TOTAL_COLOUR, bar_marker
from analysis.statistics.bootstrap import Floats

STACKED_LAYOUT: Final = {  # Layout of stacked stage bars, with the legend below.
    "barmode": "stack",
    "legend": {"traceorder": "normal", "orientation": "h", "y": 0, "yanchor": "bottom", "yref": "container"},
    "margin": {"b": 150, "t": 12},
}


def axis(title: str, **options: Any) -> Trace:
    """Returns an axis with a title."""
    return {"title": {"text": title}, **options}


def axis_from_zero(title: str, **options: Any) -> Trace:
    """Returns an axis whose range includes 0."""
    return axis(title, rangemode="tozero", **options)


def line(name: str, x: Any, y: Any, style: Trace, hover: str = "", **options: Any) -> Trace:
    """Returns a line; `style` has Plotly's line attributes, such as color, dash and width."""
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": style, **_hover(hover), **options}


def points(name: str, x: Any, y: Any, marker: Trace, hover: str, **options: Any) -> Trace:
    """Returns points; `marker` has Plotly's marker attributes, such as color, size and symbol."""
    return {
        "type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker, **_hover(hover), **options,
    }  # fmt: skip


def stage_bar(stage: str, y: Any, x: Any, hover: str, **options: Any) -> Trace:
    """Returns horizontal bars of a stage in its colour; the hover text starts with the meaning of the stage."""
    hover = f"<b>{stage}</b>: the frame {STAGES[stage].meaning}<br>{hover}"
    return {
        "type": "bar", "orientation": "h", "name": stage, "y": y, "x": x, "marker": bar_marker(stage), **_hover(hover),
        **options,
    }  # fmt: skip


def bars(counts: npt.NDArray[np.int64], edges: Floats, colour: str, hover: str) -> Trace:
    """Returns the bars of a histogram."""
    marker = {"color": colour, "line": {"color": "#ffffff", "width": 0.5}}
    centers, widths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    return {"type": "bar", "x": centers, "y": counts, "width": widths, "marker": marker, **_hover(hover)}


def stacked_histogram(
    values: Floats, groups: pd.Series, edges: Floats, colours: Mapping[str, str], hover: str
) -> tuple[Trace, ...]:
    """Returns stacked bars of the values in each group; groups are drawn in the order of their colours."""
    traces = []
    for group, colour in colours.items():
        counts, _ = np.histogram(values[(groups == group).to_numpy()], edges)
        if counts.any():
            name = f"{group} {int(counts.sum()):,}"
            traces.append(bars(counts, edges, colour, f"{name}: {hover}") | {"name": name})
    return tuple(traces)


def vertical_lines(values: Mapping[str, float], *, is_log: bool = False) -> Trace:
    """Returns the keys `shapes` and `annotations` of a layout: dotted vertical lines at the values, with their labels.

    `is_log`: the x axis is logarithmic.
    """
    style = {"color": TOTAL_COLOUR, "width": 1.2, "dash": "dot"}
    shapes = [
        {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": style} for x in values.values()
    ]
    labels = [
        {
            "x": np.log10(x) if is_log else x, "y": 1 - 0.09 * row, "yref": "paper", "text": f" {label}",
            "xanchor": "left", "yanchor": "top", "showarrow": False, "bgcolor": "rgba(255,255,255,0.8)",
        }
        for row, (label, x) in enumerate(values.items())
    ]  # fmt: skip
    return {"shapes": shapes, "annotations": labels}


def not_measured(anchor: str, title: str, reason: str = "no frame was answered") -> Chapter:
    """Returns a chapter that only explains why it has no values."""
    return Chapter(anchor, title, (Paragraph(f"Not measured: {reason}."),))


def _hover(text: str) -> Trace:
    return {"hovertemplate": f"{text}<extra></extra>"} if text else {}
