"""The total latency of every frame over time; the slowest frames are marked and can be opened."""

from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.run_log import ORIGINS, frames_not_sent
from analysis.report.chapters.traces import axis_from_zero, line, not_measured, points
from analysis.report.content import Chapter, Chart, FrameList, ReportTable, Trace
from analysis.report.data.answered_frames import (
    TIME_AXIS_TITLE,
    column_values,
    part_durations,
    parts_in,
    seconds_since,
)
from analysis.report.output.number_format import milliseconds
from analysis.report.stage_styles import OUTCOME_COLOURS, TOTAL_COLOUR
from analysis.statistics.bootstrap import Floats

SLOWEST = 12
_TITLE = "Latency over time"
_MAX_BINS = 120
_MIN_BINS = 5  # Fewer bins do not make a meaningful line.
_MIN_FRAMES_PER_BIN = 20
_MANY_POINTS = 1000  # More points are drawn smaller.
_POINT_COLOUR = "#6d9db5"
_RESULT_SYMBOLS = ("diamond", "square")
_SYMBOLS = ("x", "cross", "triangle-down", "diamond", "square", "star", "circle", "hexagon")


def chapter(shown: pd.DataFrame, answered: pd.DataFrame, start_ns: int) -> Chapter:
    """Returns the totals over time, in seconds since `start_ns`.

    `shown` are the frames to draw, with and without a result; `answered` are all frames answered by a worker.
    """
    if answered.empty:
        return not_measured("timeline", _TITLE)
    slow = slowest(answered)
    frames_and_labels = tuple(
        (sequence, f"#{sequence}  {milliseconds(total)}")
        for sequence, total in zip(slow["sequence"].tolist(), slow["total_ms"].tolist(), strict=True)
    )
    listed = FrameList("Open one of the slowest frames:", frames_and_labels)
    parts = (_chart(shown, answered, slow, start_ns), listed, _table(slow, answered, start_ns))
    return Chapter("timeline", _TITLE, parts)


def slowest(answered: pd.DataFrame) -> pd.DataFrame:
    """Returns the 12 slowest frames, starting with the slowest."""
    return answered.sort_values("total_ms", ascending=False, kind="stable").head(SLOWEST)


def _name(row: pd.Series) -> str:
    return f"{row['vehicle']} {row['camera']} #{row['sequence']}"


def _chart(frames: pd.DataFrame, answered: pd.DataFrame, slow: pd.DataFrame, start_ns: int) -> Chart:
    shown = frames[frames.index.isin(answered.index)]
    not_sent, unanswered = frames_not_sent(frames), frames[~frames["outcome"].isin([*ORIGINS])]
    point = {"color": _POINT_COLOUR, "size": 4 if len(shown) > _MANY_POINTS else 7, "opacity": 0.6}
    traces = [
        _marks(f"{camera}, answered" if len(not_sent) else str(camera), rows, start_ns, _totals(rows), point)
        for camera, rows in shown.groupby("camera", sort=False)
    ]
    for index, (outcome, rows) in enumerate(not_sent.groupby("outcome", sort=False)):
        marker = point | {"color": OUTCOME_COLOURS[outcome], "symbol": _RESULT_SYMBOLS[index], "opacity": 0.8}
        traces.append(_marks(f"{outcome.replace('_', ' ')}", rows, start_ns, _totals(rows), marker))
    traces += _trend(seconds_since(answered, "t_due_ns", start_ns), column_values(answered, "total_ms"))
    ring = {"color": "rgba(0,0,0,0)", "size": 12, "line": {"color": "#b5480f", "width": 2}}
    traces.append(_marks(f"the {len(slow)} slowest", slow, start_ns, _totals(slow), ring))
    for index, (outcome, rows) in enumerate(unanswered.groupby("outcome", sort=False)):
        marker = {"color": OUTCOME_COLOURS[outcome], "size": 7, "symbol": _SYMBOLS[index % len(_SYMBOLS)]}
        traces.append(_marks(f"{outcome} {len(rows):,}", rows, start_ns, [outcome] * len(rows), marker, yaxis="y2"))
    has_rug = len(unanswered) > 0
    layout = {
        "xaxis": axis_from_zero(TIME_AXIS_TITLE, anchor="y2" if has_rug else "y"),
        "yaxis": axis_from_zero("total, ms", domain=[0.26 if has_rug else 0, 1]),
        "hovermode": "closest",
    }
    if has_rug:
        layout["yaxis2"] = {"domain": [0, 0.18], "type": "category", "showgrid": False, "fixedrange": True}
    also = f" and {len(not_sent):,} that were not sent" if len(not_sent) else ""
    caption = (
        f"Total latency of {len(answered):,} frames answered by a worker{also} by the time they were due. The slowest, "
        f"{_name(slow.iloc[0])}, took {milliseconds(float(slow['total_ms'].iloc[0]))}. Point at a frame for its id; click "
        "it for its stages."
    )
    if len(shown) < len(answered):
        caption += (
            f" {len(shown):,} answered frames are drawn: the slowest and an even selection of the others; the lines include "
            "all of them."
        )
    if has_rug:
        caption += f" The lower part shows {len(unanswered):,} frames without a result."
    return Chart("timeline", caption, tuple(traces), layout, height=460)


def _marks(name: str, rows: pd.DataFrame, start_ns: int, y: Any, marker: Trace, **options: Any) -> Trace:
    """Returns the frames as points with their ids; a click on a point opens the frame."""
    return points(
        name,
        seconds_since(rows, "t_due_ns", start_ns).astype(np.float32),
        y,
        marker,
        f"{rows['vehicle'].iloc[0]} #%{{customdata}}<br>%{{y:.2f}}, due at %{{x:.3f}} s",
        customdata=rows["sequence"].to_numpy(np.int32),
        **options,
    )


def _totals(rows: pd.DataFrame) -> Any:
    return column_values(rows, "total_ms").astype(np.float32)


def _trend(times_s: Floats, totals: Floats) -> list[Trace]:
    """Returns lines of the median and the 95th percentile per bin of equally many frames; none for too few frames."""
    bins = min(_MAX_BINS, len(totals) // _MIN_FRAMES_PER_BIN)
    if bins < _MIN_BINS:
        return []
    indices = np.array_split(np.arange(len(totals)), bins)
    centers = np.array([times_s[part].mean() for part in indices])
    return [
        line(
            f"{name} of {len(totals) // bins:,} frames",
            centers,
            np.array([np.percentile(totals[part], percent) for part in indices]),
            {"color": TOTAL_COLOUR, "width": 1.8, "dash": dash},
            hoverinfo="skip",
        )
        for percent, name, dash in ((50, "median", "solid"), (95, "95th percentile", "dot"))
    ]


def _table(slow: pd.DataFrame, answered: pd.DataFrame, start_ns: int) -> ReportTable:
    """Returns the slowest frames with the stage that exceeds its median most."""
    medians = {part: float(np.median(part_durations(answered, part))) for part in parts_in(answered)}
    due_s = seconds_since(slow, "t_due_ns", start_ns)
    rows = []
    for at_s, (_, row) in zip(due_s, slow.iterrows(), strict=True):
        excess = {stage: _duration_ms(row, stage) - median for stage, median in medians.items()}
        stage = max(excess, key=lambda name: excess[name])
        rows.append((_name(row), float(at_s), float(row["total_ms"]), stage, excess[stage], str(row["worker"])))
    headings = ("frame", "due at s", "total ms", "delayed in", "above its median, ms", "worker")
    caption = (
        f"The {len(rows)} slowest of the answered frames. Delayed in: the stage that exceeds its median by the longest "
        "time."
    )
    return ReportTable("slowest", caption, headings, rows)


def _duration_ms(row: pd.Series, stage: str) -> float:
    """Returns the duration of a stage; 0 if the frame did not pass an optional one."""
    duration = row[f"{stage}_ms"]
    return 0.0 if pd.isna(duration) else float(duration)
