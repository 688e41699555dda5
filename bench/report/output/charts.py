"""Charts as Plotly draws them: JSON for the page, SVG and PNG for papers. The one place that knows Plotly."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from bench.report.content import Chart, Trace
from shared.errors import MissingExtraError, SkylaneError

_WIDTH: Final = 960
_MOST_VECTORS: Final = 5_000  # Points of a trace in a file: more are no longer told apart, but make it large.
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', 'DejaVu Sans', sans-serif"
_AXIS: Final = {
    "gridcolor": "#e6e8eb",
    "linecolor": "#8a9099",
    "zerolinecolor": "#c4c9d0",
    "ticks": "outside",
    "tickcolor": "#8a9099",
    "automargin": True,
    "title": {"font": {"size": 13}, "standoff": 10},
}
_HOUSE: Final = go.layout.Template(
    layout={
        "font": {"family": _FONT, "size": 13, "color": "#24292f"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "margin": {"l": 64, "r": 20, "t": 24, "b": 52},
        "hoverlabel": {"bgcolor": "#ffffff", "font": {"family": _FONT, "size": 12}, "align": "left"},
        "legend": {
            "orientation": "h",
            "yanchor": "bottom",
            "y": 1.02,
            "xanchor": "left",
            "x": 0,
            "title": {"text": ""},
        },
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "bargap": 0.25,
    }
)


class FiguresError(SkylaneError):
    """The figures cannot be drawn as files."""


def plotly_script() -> str:
    """Plotly's JavaScript, which the page carries with it."""
    return str(get_plotlyjs())


def to_json(chart: Chart) -> str:
    """The chart for the page: traces and layout; long columns as typed arrays in base64."""
    return str(_figure(chart).to_json())


def write_figures(charts: Iterable[Chart], folder: Path) -> list[Path]:
    """Draw each chart as `<name>.svg` and `<name>.png` (twice the size) into a folder that is there.

    Raises:
        FiguresError: there is no Chrome or Chromium on this machine, or it cannot draw into the folder.
        MissingExtraError: kaleido, which drives the browser, is not installed.
    """
    try:
        import kaleido  # noqa: PLC0415  The page needs none.
        from kaleido.errors import ChromeNotFoundError  # noqa: PLC0415  The same.
    except ModuleNotFoundError as error:
        raise MissingExtraError("drawing the figures", str(error.name), "figures") from error
    specs = [
        {
            "fig": _figure(_as_vectors(chart)).to_dict(),
            "path": folder / f"{chart.name}.{suffix}",
            "opts": {"format": suffix, "width": _WIDTH, "height": chart.height, "scale": scale},
        }
        for chart in charts
        for suffix, scale in (("svg", 1), ("png", 2))
    ]
    browser = find_browser()
    options = {"mathjax": False} | ({"path": browser} if browser else {})
    try:
        kaleido.write_fig_from_object_sync(specs, kopts=options)
    except ChromeNotFoundError as error:
        raise FiguresError(
            "the figures need Chrome or Chromium, which is not here: apt-get install chromium, or run plotly_get_chrome"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise FiguresError(f"the figures cannot be drawn into {folder}: {said}") from error
    return [spec["path"] for spec in specs]


def find_browser() -> str | None:
    """A Chrome or Chromium on the path; kaleido finds those it has downloaded by itself."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def _as_vectors(chart: Chart) -> Chart:
    """The chart without WebGL, which a browser without a graphics card lacks; a long trace is thinned evenly."""
    return replace(chart, traces=tuple(map(_vectors, chart.traces)))


def _vectors(trace: Trace) -> Trace:
    if trace["type"] != "scattergl":
        return trace
    step = max(1, -(-len(trace["x"]) // _MOST_VECTORS))
    return (
        trace | {"type": "scatter"} | {name: trace[name][::step] for name in ("x", "y", "customdata") if name in trace}
    )


def _figure(chart: Chart) -> Any:
    figure = go.Figure(data=list(chart.traces), layout={"height": chart.height, **chart.layout})
    return figure.update_layout(template=_HOUSE)
