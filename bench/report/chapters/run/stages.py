"""Where the time goes: the journey of a frame, stage by stage."""

from collections.abc import Sequence
from itertools import accumulate, groupby

import numpy as np
import pandas as pd

from bench.report.content import (
    Chapter,
    Chart,
    Column,
    ColumnKind,
    Paragraph,
    ReportTable,
    Trace,
    number_columns,
    text_columns,
)
from bench.report.data.answered_frames import column_values, frames_near_median, mean_durations
from bench.report.output.number_format import milliseconds, share
from bench.report.output.stage_styles import STAGES, bar_marker
from shared.runlog.latency_table import PARTS, WHERE, Summary, summarise_durations
from shared.runlog.percentiles import NOTE, has_percentile

_BANDS = {"edge": ("vehicle", "#f2f7fc"), "link": ("link", "#f0f0f0"), "cloud": ("cloud", "#fffaf0")}
_TAIL = 0.05
_LEAST = 20  # Answered frames from which on the slowest twentieth is a frame at least.
_TEXT_SHARE = 0.12  # Of the time: what is shorter gets no text in its bar.


def node_of(part: str) -> str:
    """The node a part of the journey belongs to: edge, link or cloud."""
    return "link" if part in {"uplink", "downlink"} else WHERE[part]


def chapter(frames: pd.DataFrame) -> Chapter:
    """The journey of the answered frames: waterfall, shares and table."""
    if frames.empty:
        nothing = Paragraph("Not measured: no frame was answered with all its stages, so there is no journey to show.")
        return Chapter("stages", "Where the time goes", (nothing,))
    return Chapter("stages", "Where the time goes", (waterfall(frames), shares(frames), table(frames)))


def waterfall(frames: pd.DataFrame) -> Chart:
    """The journey of the frames about the median, one stage after the other."""
    about = frames_near_median(frames)
    journey = mean_durations(about)
    total = sum(journey.values())
    parts, lasting = list(journey), list(journey.values())
    begins = [0.0, *accumulate(lasting)][:-1]
    traces = tuple(
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": [place],
            "x": [lasting[place]],
            "base": [begins[place]],
            "text": [milliseconds(lasting[place])],
            "textposition": "outside",
            "cliponaxis": False,
            "marker": bar_marker(part),
            "hovertemplate": f"<b>{part}</b>: the frame {STAGES[part].meaning}<br>%{{x:.3f}} ms, "
            f"{begins[place]:.3f} ms after it was due<extra></extra>",
        }
        for place, part in enumerate(parts)
    )
    layout = {
        "barmode": "overlay",
        "showlegend": False,
        "xaxis": {"title": {"text": "time since the frame was due, ms"}, "range": [0, total * 1.2]},
        "yaxis": {
            "autorange": "reversed",
            "tickmode": "array",
            "tickvals": list(range(len(parts))),
            "ticktext": parts,
            "showgrid": False,
        },
        **_bands(parts),
    }
    return Chart("waterfall", _told_journey(about, journey, total), traces, layout, height=120 + 26 * len(parts))


def _bands(parts: Sequence[str]) -> Trace:
    """A ground behind the stages of each node, and its name at the right."""
    shapes, names = [], []
    begin = 0
    for node, group in groupby(parts, node_of):
        end = begin + len(list(group))
        title, ground = _BANDS[node]
        shapes.append({
            "type": "rect", "layer": "below", "xref": "paper", "x0": 0, "x1": 1,
            "y0": begin - 0.5, "y1": end - 0.5, "fillcolor": ground, "line": {"width": 0},
        })  # fmt: skip
        names.append({
            "text": title, "xref": "paper", "x": 1, "xanchor": "right", "y": (begin + end - 1) / 2,
            "showarrow": False, "font": {"color": "#57606a", "size": 12},
        })  # fmt: skip
        begin = end
    return {"shapes": shapes, "annotations": names}


def _told_journey(about: pd.DataFrame, journey: dict[str, float], total: float) -> str:
    first, second = sorted(journey, key=lambda part: journey[part], reverse=True)[:2]
    count = "the one frame" if len(about) == 1 else f"the {len(about):,} frames"
    told = (
        f"The journey of a frame about the median: the mean of {count} whose total lies from the 45th to the 55th "
        f"percentile, {milliseconds(total)} in all. Most of it is {first} ({milliseconds(journey[first])}), then "
        f"{second} ({milliseconds(journey[second])})."
    )
    if "uplink" in journey:
        error = float(column_values(about, "clock_error_ms").mean())
        told += f" Uplink and downlink are each true to within {milliseconds(error)}; their sum is exact."
    return told


def shares(frames: pd.DataFrame) -> Chart:
    """What share of the time each stage takes: of all frames, and of the fastest, the middle and the slowest."""
    groups = [(name, *_shares(rows)) for name, rows in _groups(frames)]
    labels = [f"{name}<br>mean {milliseconds(total)}" for name, _, total in groups]
    traces = tuple(
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": labels,
            "x": [100 * parts[part] for _, parts, _ in groups],
            "text": [part if parts[part] > _TEXT_SHARE else "" for _, parts, _ in groups],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "textfont": {"color": bar_marker(part)["pattern"]["fgcolor"]},  # type: ignore[index]  # A mark is a map of anything.
            "marker": bar_marker(part),
            "hovertemplate": f"<b>{part}</b>: the frame {STAGES[part].meaning}<br>%{{x:.2f}} % of the time<extra></extra>",
        }
        for part in map(str, PARTS)
    )
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "share of the time, %"}, "range": [0, 100]},
        "yaxis": {"autorange": "reversed"},
        "legend": {"traceorder": "normal", "orientation": "h", "y": 0, "yanchor": "bottom", "yref": "container"},
        "margin": {"b": 150, "t": 12},
    }
    return Chart("shares", _told_shares(groups), traces, layout, height=230 + 62 * len(groups))


def _groups(frames: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    every = (f"all {len(frames):,} frames", frames)
    if len(frames) < _LEAST:
        return [every]
    totals = frames["total_ms"]
    fast, slow = totals.quantile(_TAIL), totals.quantile(1 - _TAIL)
    return [
        every,
        ("the fastest 5 %", frames[totals <= fast]),
        ("the middle 10 %", frames_near_median(frames)),
        ("the slowest 5 %", frames[totals >= slow]),
    ]


def _shares(frames: pd.DataFrame) -> tuple[dict[str, float], float]:
    """Each part's share of the time, and the mean total in milliseconds."""
    total = column_values(frames, "total_ms")
    summed = float(total.sum())
    parts = {
        str(part): float(column_values(frames, f"{part}_ms").sum()) / summed if summed else np.nan for part in PARTS
    }
    return parts, float(total.mean())


def _told_shares(groups: list[tuple[str, dict[str, float], float]]) -> str:
    _, parts, _ = groups[0]
    leading = sorted(parts, key=lambda part: parts[part], reverse=True)[:3]
    told = (
        f"Shares of the time of the answered frames: {', '.join(f'{part} {share(parts[part])}' for part in leading)}."
    )
    if len(groups) == 1:
        return told
    _, slow, _ = groups[-1]
    grown = max(slow, key=lambda part: slow[part] - parts[part])
    return f"{told} Of the slowest twentieth, {grown} takes {share(slow[grown])} instead of {share(parts[grown])}."


def stage_summaries(frames: pd.DataFrame) -> list[Summary]:
    """The stages of the answered frames in figures, and their total: what the terminal shows."""
    return summarise_durations(np.column_stack([column_values(frames, f"{name}_ms") for name in (*PARTS, "total")]))


def table(frames: pd.DataFrame) -> ReportTable:
    """The stages in figures, and what a frame spends them on."""
    rows = tuple(
        (
            summary.name,
            {"edge": "vehicle"}.get(summary.where, summary.where),
            STAGES[summary.name].meaning if summary.name in STAGES else "is on its whole way",
            summary.p50_ms,
            summary.p95_ms,
            summary.p99_ms,
            100 * summary.share,
        )
        for summary in stage_summaries(frames)
    )
    columns = (
        Column("stage", ColumnKind.STAGE),
        *text_columns("where", "in it, the frame …"),
        *number_columns("p50 ms", "p95 ms", "p99 ms"),
        Column("share %", digits=1),
    )
    caption = (
        f"Time by stage of {len(frames):,} answered frames. The stages sum to the total of every frame; percentiles do "
        f"not, as no frame is the median in every stage.{'' if has_percentile(99, len(frames)) else f' {NOTE}'}"
    )
    return ReportTable("stages", caption, columns, rows)
