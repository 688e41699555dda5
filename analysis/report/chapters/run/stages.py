"""The time of a frame by stage."""

from collections.abc import Sequence
from itertools import accumulate, groupby

import numpy as np
import pandas as pd

from analysis.report.chapters.traces import STACKED_LAYOUT, axis, not_measured, stage_bar
from analysis.report.content import Chapter, Chart, ReportTable, Trace
from analysis.report.data.answered_frames import (
    column_values,
    frames_near_median,
    mean_durations,
    part_durations,
    parts_in,
    stage_durations,
)
from analysis.report.output.number_format import milliseconds, share
from analysis.report.stage_styles import STAGES, node_of, text_colour
from shared.runlog.latency_table import StageSummary, summarise_durations
from shared.runlog.percentiles import NOTE, has_percentile
from shared.stages import OPTIONAL_STAGES

STAGES_TITLE = "Where the time goes"
_NODES = {"edge": ("vehicle", "#f2f7fc"), "link": ("link", "#f0f0f0"), "cloud": ("cloud", "#fffaf0")}
_TAIL_SHARE = 0.05
_MIN_FRAMES_FOR_GROUPS = 20  # The slowest 5 % of fewer frames would be empty.
_MIN_LABELLED_SHARE = 0.12  # Smaller shares get no label in their bar.


def chapter(frames: pd.DataFrame) -> Chapter:
    """Returns the stages of the frames answered by a worker as waterfall, shares and table."""
    if frames.empty:
        return not_measured("stages", STAGES_TITLE, "no frame was answered with all its stage durations")
    return Chapter("stages", STAGES_TITLE, (_waterfall(frames), _shares_chart(frames), _table(frames)))


def _waterfall(frames: pd.DataFrame) -> Chart:
    """Shows the stages of the frames near the median, one after the other."""
    near_median = frames_near_median(frames)
    durations = mean_durations(near_median)
    total = sum(durations.values())
    starts = [0.0, *accumulate(durations.values())][:-1]
    traces = tuple(
        stage_bar(
            stage,
            [stage],
            [duration],
            f"%{{x:.3f}} ms, {start:.3f} ms after it was due",
            base=[start],
            text=[milliseconds(duration)],
            textposition="outside",
            cliponaxis=False,
        )
        for (stage, duration), start in zip(durations.items(), starts, strict=True)
    )
    layout = {
        "barmode": "overlay",
        "showlegend": False,
        "xaxis": axis("time since the frame was due, ms", range=[0, total * 1.2]),
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        **_node_bands(list(durations)),
    }
    caption = _waterfall_caption(near_median, durations, total)
    return Chart("waterfall", caption, traces, layout, height=120 + 26 * len(durations))


def _node_bands(stages: Sequence[str]) -> Trace:
    """Returns a background for the stages of each node, with the node's name at the right."""
    shapes, names = [], []
    begin = 0
    for node, group in groupby(stages, node_of):
        end = begin + len(list(group))
        title, background = _NODES[node]
        shapes.append({
            "type": "rect", "layer": "below", "xref": "paper", "x0": 0, "x1": 1,
            "y0": begin - 0.5, "y1": end - 0.5, "fillcolor": background, "line": {"width": 0},
        })  # fmt: skip
        names.append({
            "text": title, "xref": "paper", "x": 1, "xanchor": "right", "y": (begin + end - 1) / 2,
            "showarrow": False, "font": {"color": "#57606a", "size": 12}, "name": "wide",
        })  # fmt: skip
        begin = end
    return {"shapes": shapes, "annotations": names}


def _waterfall_caption(near_median: pd.DataFrame, durations: dict[str, float], total: float) -> str:
    longest = max(durations, key=lambda stage: durations[stage])
    caption = (
        f"Stages of a typical frame: means of {len(near_median):,} frames with a total between the 45th and the 55th "
        f"percentile ({milliseconds(total)} on average). The longest is {longest} ({milliseconds(durations[longest])})."
    )
    if "uplink" in durations:
        error = float(column_values(near_median, "clock_error_ms").mean())
        caption += f" Uplink and downlink have an error of at most {milliseconds(error)} each; their sum is exact."
    return caption


def _shares_chart(frames: pd.DataFrame) -> Chart:
    """Shows the share of each stage in the time of all frames, and of the fastest, middle and slowest frames."""
    stages = tuple(stage_durations(frames))
    groups = [(name, *_stage_shares(rows, stages)) for name, rows in _groups(frames)]
    labels = [f"{name}<br>mean {milliseconds(total)}" for name, _, total in groups]
    traces = tuple(
        stage_bar(
            stage,
            labels,
            [100 * stage_shares[stage] for _, stage_shares, _ in groups],
            "%{x:.2f} % of the time",
            text=[stage if stage_shares[stage] > _MIN_LABELLED_SHARE else "" for _, stage_shares, _ in groups],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"color": text_colour(STAGES[stage].colour)},
        )
        for stage in stages
    )
    axes = {"xaxis": axis("share of the time, %", range=[0, 100]), "yaxis": {"autorange": "reversed"}}
    return Chart("shares", _shares_caption(groups), traces, STACKED_LAYOUT | axes, height=230 + 62 * len(groups))


def _groups(frames: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    all_frames = (f"all {len(frames):,} frames", frames)
    if len(frames) < _MIN_FRAMES_FOR_GROUPS:
        return [all_frames]
    totals = frames["total_ms"]
    fast, slow = totals.quantile(_TAIL_SHARE), totals.quantile(1 - _TAIL_SHARE)
    return [
        all_frames,
        ("the fastest 5 %", frames[totals <= fast]),
        ("the middle 10 %", frames_near_median(frames)),
        ("the slowest 5 %", frames[totals >= slow]),
    ]


def _stage_shares(frames: pd.DataFrame, stages: Sequence[str]) -> tuple[dict[str, float], float]:
    """Returns each stage's share of the time, and the mean total in milliseconds."""
    mean = float(column_values(frames, "total_ms").mean())
    shares = {stage: float(part_durations(frames, stage).mean()) / mean if mean else np.nan for stage in stages}
    return shares, mean


def _shares_caption(groups: list[tuple[str, dict[str, float], float]]) -> str:
    of_all, of_slowest = groups[0][1], groups[-1][1]
    largest = max(of_all, key=lambda stage: of_all[stage])
    caption = (
        f"Shares of the stages in the time of the answered frames; the largest is {largest}, {share(of_all[largest])}."
    )
    if len(groups) > 1:
        grown = max(of_slowest, key=lambda stage: of_slowest[stage] - of_all[stage])
        caption += f" In the slowest frames, {grown} has {share(of_slowest[grown])} instead of {share(of_all[grown])}."
    return caption


def stage_summaries(frames: pd.DataFrame, stages: Sequence[str] = ()) -> list[StageSummary]:
    """Returns percentiles and share of each stage and of the total; by default of all stages of the frames."""
    names = (*(stages or parts_in(frames)), "total")
    return summarise_durations(np.column_stack([column_values(frames, f"{name}_ms") for name in names]), names)


def _table(frames: pd.DataFrame) -> ReportTable:
    """Returns percentiles, share and meaning of each stage."""
    rows = tuple(
        (
            summary.name,
            {"edge": "vehicle"}.get(summary.where, summary.where),
            summary.p50_ms,
            summary.p95_ms,
            summary.p99_ms,
            100 * summary.share,
            STAGES[summary.name].meaning if summary.name in STAGES else "passes through all stages",
        )
        for summary in stage_summaries(frames, tuple(stage_durations(frames)))
    )
    headings = ("stage", "where", "p50 ms", "p95 ms", "p99 ms", "share %", "in this stage, the frame …")
    caption = (
        f"Time by stage of {len(frames):,} frames answered by a worker. The stages of each frame sum to its total; the "
        f"percentiles of the stages do not sum to those of the total.{_skipped_note(frames)}"
        f"{'' if has_percentile(99, len(frames)) else f' {NOTE}'}"
    )
    return ReportTable("stages", caption, headings, rows, {"share %": 1})


def _skipped_note(frames: pd.DataFrame) -> str:
    """Names the optional stages that only some of the frames passed."""
    passed = {stage: int(np.isfinite(column_values(frames, f"{stage}_ms")).sum()) for stage in OPTIONAL_STAGES}
    some = [f"{stage} {count:,}" for stage, count in passed.items() if 0 < count < len(frames)]
    return f" Frames that passed an optional stage: {', '.join(some)}; its percentiles are of these." if some else ""
