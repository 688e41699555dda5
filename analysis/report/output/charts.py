"""Draws charts with Plotly: JSON for the page, SVG and PNG for papers."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from analysis.report.content import Chart
from shared.errors import MissingExtraError, SkylaneError
from shared.files import write_file

_WIDTH: Final = 960
_LETTER: Final = 7  # Pixels of a letter and of a line in the key of a chart.
_LINE: Final = 17
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
_TEMPLATE: Final = go.layout.Template(
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
    """The charts cannot be written as image files."""


def plotly_script() -> str:
    """Returns Plotly's JavaScript library, which the page embeds."""
    return str(get_plotlyjs())


def to_json(chart: Chart) -> str:
    """Returns traces and layout of a chart as JSON; Plotly encodes long columns as base64 typed arrays."""
    return str(_figure(chart).to_json())


def write_figures(charts: Iterable[Chart], folder: Path, root: Path | None = None) -> list[Path]:
    """Writes each chart as `<name>.svg` and `<name>.png` (twice the size) into a folder; for `root`, see `new_file`.

    Raises:
        FiguresError: Chrome or Chromium is missing, or the files cannot be written.
        MissingExtraError: kaleido, which controls the browser, is not installed.
    """
    try:
        import kaleido  # noqa: PLC0415  An optional dependency; the page does not need it.
        from kaleido.errors import ChromeNotFoundError  # noqa: PLC0415  An extra brings it.
    except ModuleNotFoundError as error:
        raise MissingExtraError("drawing the charts", str(error.name), "figures") from error
    drafts = TemporaryDirectory()
    specs = [
        {
            "fig": _figure(chart).to_dict(),
            "path": Path(drafts.name, f"{chart.name}.{suffix}"),
            "opts": {"format": suffix, "width": _WIDTH, "height": chart.height, "scale": scale},
        }
        for chart in map(_with_key, charts)
        for suffix, scale in (("svg", 1), ("png", 2))
    ]
    browser = find_browser()
    options = {"mathjax": False} | ({"path": browser} if browser else {})
    written = [folder / spec["path"].name for spec in specs]
    try:
        with drafts:
            kaleido.write_fig_from_object_sync(specs, kopts=options)
            for spec, path in zip(specs, written, strict=True):
                write_file(path, spec["path"].read_bytes(), root)
    except ChromeNotFoundError as error:
        raise FiguresError(
            "writing the charts needs Chrome or Chromium, which was not found: run 'apt-get install chromium' or "
            "'plotly_get_chrome'"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FiguresError(f"the charts cannot be written into {folder}: {reason}") from error
    return written


def find_browser() -> str | None:
    """Returns a Chrome or Chromium on the path; kaleido finds its own downloads itself."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def _with_key(chart: Chart) -> Chart:
    """Returns a chart whose marks have numbers, and a key to their names, which the page shows at the pointer."""
    named = [[name for name in trace.get("customdata", ()) if isinstance(name, str)] for trace in chart.traces]
    numbers = {name: str(number) for number, name in enumerate(dict.fromkeys(chain(*named)), start=1)}
    if not numbers:
        return chart
    traces = tuple(
        {
            **trace,
            "mode": "markers+text",
            "text": [numbers[name] for name in names],
            "textposition": ["middle right" if int(numbers[name]) % 2 else "middle left" for name in names],
            "cliponaxis": False,
        }
        if names
        else trace
        for trace, names in zip(chart.traces, named, strict=True)
    )
    key = {
        "text": "<br>".join(f"{number} {name}" for name, number in numbers.items()),
        "x": 1, "xref": "paper", "xanchor": "left", "xshift": 24, "y": 1, "yref": "paper", "yanchor": "top",
        "align": "left", "showarrow": False,
    }  # fmt: skip
    margin = {**chart.layout.get("margin", {}), "r": 40 + _LETTER * max(map(len, numbers))}
    height = max(chart.height, 100 + _LINE * len(numbers))
    return replace(chart, traces=traces, layout={**chart.layout, "annotations": [key], "margin": margin}, height=height)


def _figure(chart: Chart) -> Any:
    figure = go.Figure(data=list(chart.traces), layout={"height": chart.height, **chart.layout})
    return figure.update_layout(template=_TEMPLATE)
