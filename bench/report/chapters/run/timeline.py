"""The run over time: every frame a point, the slowest marked, each to be opened."""

import numpy as np
import pandas as pd

from bench.report.content import Chapter, Chart, FrameList, Paragraph, ReportTable, Trace, number_columns, text_columns
from bench.report.data.answered_frames import TIME_AXIS_TITLE, Floats, column_values, frame_name, seconds_since
from bench.report.data.frame_details import frames_on_page
from bench.report.output.number_format import milliseconds
from bench.report.output.stage_styles import OUTCOME_COLOURS, TOTAL_COLOUR
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS

SLOWEST = 12
_TITLE = "The run over time"
_BINS = 120
_LEAST_BINS = 5  # Fewer make no line worth reading.
_LEAST_A_BIN = 20
_MANY = 1000  # Points from which on small ones show more.
_POINT = "#6d9db5"
_SYMBOLS = ("x", "cross", "triangle-down", "diamond", "square", "star", "circle", "hexagon")


def chapter(frames: pd.DataFrame, known: pd.DataFrame, start_ns: int) -> Chapter:
    """The totals over time. `frames`: all of a run; `known`: its answered ones."""
    if known.empty:
        nothing = Paragraph("Not measured: no frame was answered, so there is no latency to show over time.")
        return Chapter("timeline", _TITLE, (nothing,))
    slow = slowest(known)
    listed = FrameList(
        "Open one of the slowest frames:", tuple(zip(slow["sequence"].tolist(), _labels(slow), strict=True))
    )
    parts = (_chart(frames, known, slow, start_ns), listed, _table(slow, known, start_ns))
    return Chapter("timeline", _TITLE, parts)


def slowest(known: pd.DataFrame) -> pd.DataFrame:
    """The slowest of the answered frames, the slowest first."""
    return known.sort_values("total_ms", ascending=False, kind="stable").head(SLOWEST)


def _name(row: pd.Series) -> str:
    return frame_name(str(row["vehicle"]), str(row["camera"]), int(row["sequence"]))


def _labels(slow: pd.DataFrame) -> list[str]:
    return [f"#{row['sequence']}  {milliseconds(float(row['total_ms']))}" for _, row in slow.iterrows()]


def _chart(frames: pd.DataFrame, known: pd.DataFrame, slow: pd.DataFrame, start_ns: int) -> Chart:
    shown = frames_on_page(known)
    unanswered = frames_on_page(frames[frames["outcome"] != Outcome.ANSWERED])
    traces = [_points(rows, start_ns) for _, rows in shown.groupby("camera", sort=False)]
    traces += _trend(seconds_since(known, "t_due_ns", start_ns), column_values(known, "total_ms"))
    traces.append(_marked(slow, start_ns))
    traces += [_rug(rows, place, start_ns) for place, (_, rows) in enumerate(unanswered.groupby("outcome", sort=False))]
    has_rug = len(unanswered) > 0
    layout = {
        "xaxis": {
            "title": {"text": TIME_AXIS_TITLE},
            "anchor": "y2" if has_rug else "y",
            "rangemode": "tozero",
        },
        "yaxis": {"title": {"text": "total, ms"}, "rangemode": "tozero", "domain": [0.26 if has_rug else 0, 1]},
        "hovermode": "closest",
    }
    if has_rug:
        layout["yaxis2"] = {"domain": [0, 0.18], "type": "category", "showgrid": False, "fixedrange": True}
    told = (
        f"Each of {len(known):,} answered frames at the time it was due. The slowest, {_name(slow.iloc[0])}, took "
        f"{milliseconds(float(slow['total_ms'].iloc[0]))}. Point at a frame for its id; click it for its stages."
    )
    if len(shown) < len(known):
        told += f" {len(shown):,} are drawn: the slowest, and the others thinned evenly; the lines are of all."
    if has_rug:
        told += f" Below lie the {int((frames['outcome'] != Outcome.ANSWERED).sum()):,} that were not answered."
    return Chart("timeline", told, tuple(traces), layout, height=460)


def _points(rows: pd.DataFrame, start_ns: int) -> Trace:
    vehicle, camera = rows["vehicle"].iloc[0], rows["camera"].iloc[0]
    return {
        "type": "scattergl",
        "mode": "markers",
        "name": str(camera),
        "x": seconds_since(rows, "t_due_ns", start_ns).astype(np.float32),
        "y": column_values(rows, "total_ms").astype(np.float32),
        "customdata": rows["sequence"].to_numpy(np.int32),
        "hovertemplate": f"{vehicle} {camera} #%{{customdata}}<br>%{{y:.2f}} ms, due at %{{x:.3f}} s<extra></extra>",
        "marker": {"color": _POINT, "size": 4 if len(rows) > _MANY else 7, "opacity": 0.6},
    }


def _marked(slow: pd.DataFrame, start_ns: int) -> Trace:
    return {
        "type": "scattergl",
        "mode": "markers",
        "name": f"the {len(slow)} slowest",
        "x": seconds_since(slow, "t_due_ns", start_ns),
        "y": column_values(slow, "total_ms"),
        "customdata": slow["sequence"].to_numpy(np.int32),
        "text": [_name(row) for _, row in slow.iterrows()],
        "hovertemplate": "%{text}<br>%{y:.2f} ms, due at %{x:.3f} s<extra></extra>",
        "marker": {"color": "rgba(0,0,0,0)", "size": 12, "line": {"color": "#b5480f", "width": 2}},
    }


def _trend(at_s: Floats, totals: Floats) -> list[Trace]:
    """Median and 95th percentile of spans of equally many frames; none where there are too few."""
    spans = min(_BINS, len(totals) // _LEAST_A_BIN)
    if spans < _LEAST_BINS:
        return []
    cuts = np.array_split(np.arange(len(totals)), spans)
    middles = np.array([at_s[part].mean() for part in cuts])
    lines = []
    for share, name, dash in ((50, "median", "solid"), (95, "95th percentile", "dot")):
        lines.append({
            "type": "scattergl", "mode": "lines", "name": f"{name} of {len(totals) // spans:,} frames", "x": middles,
            "y": np.array([np.percentile(totals[part], share) for part in cuts]),
            "line": {"color": TOTAL_COLOUR, "width": 1.8, "dash": dash}, "hoverinfo": "skip",
        })  # fmt: skip
    return lines


def _rug(rows: pd.DataFrame, place: int, start_ns: int) -> Trace:
    outcome = str(rows["outcome"].iloc[0])
    return {
        "type": "scattergl",
        "mode": "markers",
        "name": f"{outcome} {len(rows):,}",
        "x": seconds_since(rows, "t_due_ns", start_ns).astype(np.float32),
        "y": [outcome] * len(rows),
        "yaxis": "y2",
        "customdata": rows["sequence"].to_numpy(np.int32),
        "hovertemplate": f"#%{{customdata}} {outcome}, due at %{{x:.3f}} s<extra></extra>",
        "marker": {"color": OUTCOME_COLOURS[outcome], "size": 7, "symbol": _SYMBOLS[place % len(_SYMBOLS)]},
    }


def _table(slow: pd.DataFrame, known: pd.DataFrame, start_ns: int) -> ReportTable:
    """The slowest frames, and the stage in which each lost most against the median."""
    medians = {str(part): float(known[f"{part}_ms"].median()) for part in PARTS}
    due = seconds_since(slow, "t_due_ns", start_ns)
    rows = []
    for place, (_, row) in enumerate(slow.iterrows()):
        over = {part: float(row[f"{part}_ms"]) - median for part, median in medians.items()}
        part = max(over, key=lambda name: over[name])
        rows.append((_name(row), float(due[place]), float(row["total_ms"]), part, over[part], str(row["worker"])))
    columns = (
        *text_columns("frame"),
        *number_columns("due at s", "total ms"),
        *text_columns("lost most in"),
        *number_columns("over its median, ms"),
        *text_columns("worker"),
    )
    return ReportTable("slowest", f"The {len(rows)} slowest of the answered frames.", columns, tuple(rows))
