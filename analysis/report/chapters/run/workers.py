"""The workers of a run: how many frames each of them answered, how fast, and how the vehicle chose it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.report.chapters.traces import axis_from_zero, stacked_histogram
from analysis.report.content import Chapter, ChapterPart, Chart, ReportTable, TableRow, join_words
from analysis.report.data.answered_frames import TIME_AXIS_TITLE, column_values, seconds_since
from analysis.report.output.number_format import share
from analysis.report.stage_styles import SERIES
from shared.runlog.percentiles import NOTE, has_percentile, percentiles


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """The frames that a worker answered; latencies are NaN if the sample is too small."""

    worker: str
    frames: int
    share: float  # Share of the frames answered by all workers.
    inferred_p50_ms: float
    total_p50_ms: float
    total_p99_ms: float
    dispatched: Mapping[str, int]  # Its frames by their value of `dispatch`.


def worker_shares(answered: pd.DataFrame) -> list[WorkerShare]:
    """Returns the share of each worker that answered a frame, by the worker's name."""
    found = []
    for worker, rows in answered.groupby("worker"):
        p50, p99 = percentiles(column_values(rows, "total_ms"), (50, 99))
        (inferred_p50,) = percentiles(column_values(rows, "inferred_ms"), (50,))
        share = len(rows) / len(answered)
        found.append(WorkerShare(str(worker), len(rows), share, inferred_p50, p50, p99, dispatch_counts(rows)))
    return found


def dispatch_counts(frames: pd.DataFrame) -> dict[str, int]:
    """Returns the number of frames with each value of `dispatch`; empty for a log without this column."""
    if "dispatch" not in frames:
        return {}
    counts = frames["dispatch"].value_counts()
    return {str(way): int(counts[way]) for way in sorted(counts.index, reverse=True) if way}


_MAX_INTERVALS = 60  # Bars of the chart.
_OTHERS = "other workers"  # Their common bar, if there are more workers than colours.
_WAYS = {  # The values of the column `dispatch`.
    "load": "to a worker that it chose by load",
    "group": "to the group, in which the broker chooses the worker",
}


def chapters(frames: pd.DataFrame, answered: pd.DataFrame, start_ns: int) -> Iterator[Chapter]:
    """Yields the chapter of a run with several workers or several ways of dispatch; nothing for other runs.

    `frames` are all frames of the run; `answered` are those answered by a worker.
    """
    shares = worker_shares(answered)
    sent = dispatch_counts(frames)
    if shares and max(len(shares), len(sent)) > 1:
        parts: list[ChapterPart] = [_table(shares, sent)]
        if len(shares) > 1:
            parts.append(_chart(answered, shares, start_ns))
        yield Chapter("workers", "Workers", tuple(parts))


def _table(shares: list[WorkerShare], sent: dict[str, int]) -> ReportTable:
    rows: list[TableRow] = [
        (
            each.worker, each.frames, 100 * each.share, each.inferred_p50_ms, each.total_p50_ms, each.total_p99_ms,
            *(each.dispatched.get(way, 0) for way in sent),
        )
        for each in shares
    ]  # fmt: skip
    headings = (
        "worker", "answered", "share %", "inference p50 ms", "total p50 ms", "total p99 ms",
        *(f"by {way}" for way in sent),
    )  # fmt: skip
    caption = "The frames that each worker answered, and their latency."
    if sent:
        ways = [f"{count:,} ({share(count / sum(sent.values()))}) {_WAYS.get(way, way)}" for way, count in sent.items()]
        caption += f" Of {sum(sent.values()):,} frames sent through the broker, the vehicle sent {join_words(ways)}."
    if any(not has_percentile(99, each.frames) for each in shares):
        caption += f" {NOTE}"
    return ReportTable("workers", caption, headings, rows, {"share %": 1})


def _chart(answered: pd.DataFrame, shares: list[WorkerShare], start_ns: int) -> Chart:
    """Shows how many frames each worker answered in successive intervals."""
    by_frames = sorted(shares, key=lambda each: each.frames, reverse=True)
    shown = {each.worker for each in by_frames[: len(SERIES) if len(shares) <= len(SERIES) else len(SERIES) - 1]}
    names = answered["worker"].where(answered["worker"].isin(shown), _OTHERS)
    order = [each.worker for each in shares if each.worker in shown]
    colours = dict(zip([*order, _OTHERS], SERIES, strict=False))
    sent_s = seconds_since(answered, "t_sent_ns", start_ns)
    end_s = float(np.nanmax(sent_s))
    interval_s = max(1.0, np.ceil(end_s / _MAX_INTERVALS))
    edges = np.arange(end_s // interval_s + 2) * interval_s
    traces = stacked_histogram(sent_s, names, edges, colours, "%{y:,} frames")
    most, least = by_frames[0], by_frames[-1]
    caption = (
        f"Answered frames of each worker, by the time at which they were sent, in intervals of {interval_s:g} s. The "
        f"largest share of a worker is {share(most.share)} ({most.worker}), the smallest {share(least.share)} "
        f"({least.worker})."
    )
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": axis_from_zero(TIME_AXIS_TITLE),
        "yaxis": axis_from_zero(f"answered frames in {interval_s:g} s"),
        "legend": {"traceorder": "normal"},
    }
    return Chart("worker_frames", caption, traces, layout, height=320)
