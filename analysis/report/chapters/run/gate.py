"""The gate of a run: how different the frames were, and how old the reused results."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.report.chapters.traces import axis, stacked_histogram, vertical_lines
from analysis.report.content import ChapterPart, Chart, ReportTable, TableRow
from analysis.report.data.answered_frames import column_values
from analysis.report.data.reuse_settings import ReuseSettings
from analysis.report.data.unsent_frames import fates, reuse_ages
from analysis.report.output.number_format import milliseconds, number, share
from analysis.report.stage_styles import FATE_COLOURS
from analysis.statistics.bootstrap import Floats

_BINS = 40
_SMALLEST_SHARE = 1e-3  # Share of the threshold; smaller distances are drawn at it, as a logarithmic axis has no 0.


def parts(frames: pd.DataFrame, settings: ReuseSettings) -> Iterator[ChapterPart]:
    """Yields the distances of the compared frames and the ages of the reused results, if there are any."""
    compared = frames[frames["gate_distance"].notna()]
    if len(compared):
        yield _distance_chart(compared, settings)
    age_frames, ages_ms = reuse_ages(frames)
    if len(ages_ms):
        yield _age_chart(ages_ms, settings)
        yield _age_table(age_frames, ages_ms, settings)


def _distance_chart(compared: pd.DataFrame, settings: ReuseSettings) -> Chart:
    distances = column_values(compared, "gate_distance")
    threshold = settings.threshold
    positive = distances[distances > 0]
    scale = threshold if threshold > 0 else float(np.median(positive)) if len(positive) else 1.0
    smallest = max(scale * _SMALLEST_SHARE, float(positive.min(initial=scale)))
    drawn = np.maximum(distances, smallest)
    edges = np.geomspace(smallest, max(float(drawn.max()), scale) * 1.001, _BINS + 1)
    traces = stacked_histogram(drawn, fates(compared), edges, FATE_COLOURS, "%{y:,} frames around %{x:.3g}")
    has_line = threshold > 0  # A logarithmic axis has no 0.
    marks = vertical_lines({f"threshold {threshold:g}": threshold}, is_log=True) if has_line else {}
    below = float((distances <= threshold).mean()) if np.isfinite(threshold) else np.nan
    caption = (
        f"Distance of {len(compared):,} frames from the frame whose result could be reused, median "
        f"{number(float(np.median(distances)))}. "
    )
    if np.isfinite(threshold):
        caption += (
            f"{share(below)} are not above the threshold {threshold:g}; such a frame is sent if the result has become too "
            "old. "
        )
    if (distances < smallest).any():
        caption += f"Distances below {smallest:.3g} are drawn at this value."
    title = f"{settings.distance}<br>(logarithmic)"
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": axis(title, type="log", dtick=1),
        "yaxis": axis("frames"),
        **marks,
    }
    return Chart("gate_distances", caption, traces, layout, height=320)


def _age_chart(ages_ms: Floats, settings: ReuseSettings) -> Chart:
    edges = np.linspace(0.0, max(float(ages_ms.max()) * 1.001, 1.0), _BINS + 1)
    counts, _ = np.histogram(ages_ms, edges)
    trace = {
        "type": "bar",
        "x": (edges[:-1] + edges[1:]) / 2,
        "y": counts,
        "width": np.diff(edges),
        "marker": {"color": FATE_COLOURS["reused"], "line": {"color": "#ffffff", "width": 0.5}},
        "hovertemplate": "%{y:,} frames around %{x:.0f} ms<extra></extra>",
    }
    caption = (
        f"Age of the {len(ages_ms):,} reused results: time between the frame and the one whose result it got, median "
        f"{milliseconds(float(np.median(ages_ms)))}, at most {milliseconds(float(ages_ms.max()))}."
    )
    if np.isfinite(settings.reuse_ms):
        caption += f" The longest reuse is {milliseconds(settings.reuse_ms)}."
    layout = {"bargap": 0, "xaxis": axis("age of the reused result, ms"), "yaxis": axis("frames")}
    return Chart("reuse_ages", caption, (trace,), layout, height=280)


def _age_table(age_frames: Floats, ages_ms: Floats, settings: ReuseSettings) -> ReportTable:
    rows: list[TableRow] = [
        (unit, *(float(np.percentile(ages, percent)) for percent in (50, 95)), float(ages.max()), longest)
        for unit, ages, longest in (
            ("frames of the camera", age_frames, settings.reuse_frames),
            ("ms", ages_ms, settings.reuse_ms),
        )
    ]
    caption = f"Age of the {len(ages_ms):,} reused results, and the longest that the gate allows."
    return ReportTable("reuse_ages", caption, ("age in", "p50", "p95", "largest", "allowed"), rows)
