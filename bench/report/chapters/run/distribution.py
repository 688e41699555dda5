"""How the totals of the answered frames are spread."""

import numpy as np
import pandas as pd

from bench.report.chapters.run.outcomes import unanswered_note
from bench.report.content import Chapter, Chart, Paragraph, Toggle, Trace
from bench.report.data.answered_frames import Floats, column_values
from bench.report.output.number_format import milliseconds
from bench.report.output.stage_styles import TOTAL_COLOUR, series_style
from shared.runlog.percentiles import has_percentile

_MOST_BINS = 120
_MOST_POINTS = 2000
_MOST_TOLD = 8
_MARKS = {"p50": 50, "p95": 95, "p99": 99}


def chapter(frames: pd.DataFrame, read: int) -> Chapter:
    """Histogram and cumulative distribution of one run. `frames`: those answered, of so many `read`."""
    totals = column_values(frames, "total_ms")
    if not len(totals):
        return Chapter("distribution", "Distribution", (Paragraph("Not measured: no frame was answered."),))
    return Chapter("distribution", "Distribution", (_histogram(totals, read), cumulative_chart([("total", totals)])))


def _histogram(totals: Floats, read: int) -> Chart:
    counts, edges = np.histogram(totals, _bins(totals))
    marks = {
        name: float(np.percentile(totals, mark)) for name, mark in _MARKS.items() if has_percentile(mark, len(totals))
    }
    most = int(counts.argmax())
    trace = {
        "type": "bar",
        "x": (edges[:-1] + edges[1:]) / 2,
        "y": counts,
        "width": np.diff(edges),
        "customdata": np.column_stack((edges[:-1], edges[1:])).tolist(),
        "hovertemplate": "%{y:,} frames from %{customdata[0]:.2f} to %{customdata[1]:.2f} ms<extra></extra>",
        "marker": {"color": "#8fb4c4", "line": {"color": "#ffffff", "width": 0.5}},
        "showlegend": False,
    }
    layout = {
        "bargap": 0,
        "xaxis": {"title": {"text": "total, ms (due to result decoded)"}},
        "yaxis": {"title": {"text": f"frames per {edges[1] - edges[0]:.3g} ms"}},
        "shapes": [_line(at) for at in marks.values()],
        "annotations": [
            {
                "x": at, "y": 1 - 0.09 * place, "yref": "paper", "text": f" {name} {milliseconds(at)}",
                "xanchor": "left", "yanchor": "top", "showarrow": False, "bgcolor": "rgba(255,255,255,0.8)",
            }
            for place, (name, at) in enumerate(marks.items())
        ],
    }  # fmt: skip
    caption = (
        f"Totals of {len(totals):,} answered frames, from {milliseconds(float(totals.min()))} to "
        f"{milliseconds(float(totals.max()))}; the highest bar, {int(counts[most]):,} frames, stands from "
        f"{milliseconds(float(edges[most]))} to {milliseconds(float(edges[most + 1]))}."
        f"{unanswered_note(read, len(totals))}"
    )
    return Chart("histogram", caption, (trace,), layout, height=340)


def _bins(totals: Floats) -> Floats:
    """The edges of the bins by Freedman and Diaconis (1981), at most 120 of them."""
    p25, p75 = np.percentile(totals, (25, 75))
    width = 2 * float(p75 - p25) / len(totals) ** (1 / 3)
    bins = float(np.ptp(totals)) / width if width else 1.0
    return np.histogram_bin_edges(totals, int(np.ceil(np.clip(bins, 1, _MOST_BINS)))).astype(np.float64)


def _line(at: float) -> Trace:
    return {
        "type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper",
        "line": {"color": TOTAL_COLOUR, "width": 1.2, "dash": "dot"},
    }  # fmt: skip


def cumulative_chart(samples: list[tuple[str, Floats]]) -> Chart:
    """The share of frames within each time, of one sample or several; its tail at the press of a button."""
    traces, below, above = [], [], []
    for place, (name, totals) in enumerate(samples):
        at, share = _steps(totals)
        colour, dash = (TOTAL_COLOUR, "solid") if len(samples) == 1 else series_style(place)
        below.append(100 * share)
        above.append(100 * (1 - share) + 100 / len(totals))
        traces.append({
            "type": "scatter", "mode": "lines", "name": name, "x": at, "y": below[-1],
            "line": {"color": colour, "dash": dash, "width": 2, "shape": "hv"},
            "hovertemplate": f"{name}: %{{y:.3f}} %<br>%{{x:.2f}} ms<extra></extra>",
        })  # fmt: skip
    linear = {
        "yaxis.type": "linear",
        "yaxis.title.text": "answered frames within that time, %",
        "yaxis.autorange": False,
        "yaxis.range": [0, 101],
    }
    tail = {
        "yaxis.type": "log",
        "yaxis.title.text": "answered frames that took that long or longer, %",
        "yaxis.autorange": True,
    }
    layout = {
        "xaxis": {"title": {"text": "total, ms"}},
        "yaxis": {"title": {"text": linear["yaxis.title.text"]}, "range": [0, 101]},
        "showlegend": len(samples) > 1,
    }
    told = "; ".join(
        f"{f'{name}: ' if len(samples) > 1 else ''}{_shares(totals)}" for name, totals in samples[:_MOST_TOLD]
    )
    toggles = (
        Toggle("share within", {"y": below}, linear),
        Toggle("tail, logarithmic", {"y": above}, tail),
    )
    return Chart(
        "cumulative",
        f"Which share of the answered frames took how long at most: {told}.",
        tuple(traces),
        layout,
        toggles=toggles,
    )


def _shares(totals: Floats) -> str:
    """Within which time half the frames came, and 99 % of them where they are enough to say so."""
    told = f"half within {milliseconds(float(np.percentile(totals, 50)))}"
    if not has_percentile(99, len(totals)):
        return f"{told}, all within {milliseconds(float(totals.max()))}"
    return f"{told}, 99 % within {milliseconds(float(np.percentile(totals, 99)))}"


def _steps(totals: Floats) -> tuple[Floats, Floats]:
    """Times in order, and the share of frames within each; thinned evenly, but the slowest hundred are all there."""
    ordered = np.sort(totals)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    if len(ordered) > _MOST_POINTS:
        evenly = np.linspace(0, len(ordered) - 1, _MOST_POINTS).astype(int)
        keep = np.unique(np.concatenate((evenly, np.arange(len(ordered) - 100, len(ordered)))))
        return ordered[keep], share[keep]
    return ordered, share
