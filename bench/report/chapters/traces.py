"""Builds the traces, axes and layouts that several charts share, in the format of Plotly."""

from typing import Any, Final

from bench.report.content import Chapter, Paragraph, Trace
from bench.report.output.stage_styles import STAGES, bar_marker

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


def not_measured(anchor: str, title: str, reason: str = "no frame was answered") -> Chapter:
    """Returns a chapter that only explains why it has no values."""
    return Chapter(anchor, title, (Paragraph(f"Not measured: {reason}."),))


def _hover(text: str) -> Trace:
    return {"hovertemplate": f"{text}<extra></extra>"} if text else {}
