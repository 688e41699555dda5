"""The load of a run: a Gantt chart of its frames, the depth of each queue, latency against load, and throughput."""

import math

import numpy as np
import pandas as pd

from analysis.logs.run_log import RunLog, frames_with_result, result_times_ns
from analysis.offloading import throughput_hz
from analysis.report.chapters.run.outcomes import outcome_counts, unanswered_note
from analysis.report.chapters.traces import STACKED_LAYOUT, axis, axis_from_zero, line, not_measured, points, stage_bar
from analysis.report.content import Chapter, Chart, Trace, join_words
from analysis.report.data.answered_frames import (
    TIME_AXIS_TITLE,
    column_values,
    downsampled,
    seconds_since,
    stage_durations,
    stage_intervals,
)
from analysis.report.output.number_format import milliseconds, number
from analysis.report.stage_styles import DASHES, OUTCOME_COLOURS, TOTAL_COLOUR, series_style
from analysis.statistics.bootstrap import Floats

_TITLE = "Overlap and load"
_GANTT_FRAMES = 24
_QUEUES = {  # The stages in which a frame waits.
    "taken": "the vehicle's queue",
    "sent": "the window",
    "dequeued": "the worker's queue",
    "batched": "batch and engine",
}
_QUEUE_INTERVALS = 100
_MAX_TICKS = 8
_MAX_INTERVALS = 200  # Points of the throughput.
_NO_SPLIT = " Without a clock offset, the worker's stages are drawn too late by the duration of the downlink."


def chapter(frames: pd.DataFrame, answered: pd.DataFrame, start_ns: int) -> Chapter:
    """Returns the charts of the frames that workers answered; `frames` are all frames of the run."""
    if answered.empty:
        return not_measured("load", _TITLE)
    intervals = stage_intervals(answered, start_ns)
    note = ("" if "uplink" in intervals else _NO_SPLIT) + unanswered_note(frames, len(answered))
    due = seconds_since(answered, "t_due_ns", start_ns)
    in_system = frames_in_system(due, due + column_values(answered, "total_ms") / 1e3)
    parts = (
        _gantt(answered, start_ns),
        _queue_chart(intervals, note),
        _load_chart(answered, in_system),
    )
    return Chapter("load", _TITLE, parts)


def throughput_chapter(run: RunLog, start_ns: int) -> Chapter:
    """Returns frames due and results per second over time."""
    rate_hz = throughput_hz(run)
    if not np.isfinite(rate_hz):
        return not_measured("throughput", "Throughput")
    return Chapter("throughput", "Throughput", (_throughput_chart(run.frames, start_ns, rate_hz),))


def _throughput_chart(frames: pd.DataFrame, start_ns: int, rate_hz: float) -> Chart:
    results = frames_with_result(frames).dropna(subset=["t_due_ns"])
    results = results.assign(t_result_ns=result_times_ns(results))
    duration_s = len(results) / rate_hz
    due = seconds_since(frames, "t_due_ns", start_ns)
    done = seconds_since(results, "t_result_ns", start_ns)
    interval_s = max(1.0, np.ceil(np.nanmax(np.concatenate((due, done))) / _MAX_INTERVALS))
    traces = [_rate_line("frames due", due, interval_s, {"color": TOTAL_COLOUR, "dash": "dot", "width": 1.5})]
    counts = outcome_counts(results)
    if len(counts) > 1:
        traces.append(_rate_line("all results", done, interval_s, {"color": TOTAL_COLOUR, "width": 2.2}))
    for index, outcome in enumerate(counts):
        of_outcome = done[(results["outcome"] == outcome).to_numpy()]
        style = {"color": OUTCOME_COLOURS[outcome], "width": 2.2, "dash": DASHES[index]}
        traces.append(_rate_line(f"frames {outcome.replace('_', ' ')}", of_outcome, interval_s, style))
    listed = join_words([f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in counts.items()])
    caption = (
        f"{len(results):,} frames got a result in {number(duration_s)} s ({listed}), from the first due frame to the last "
        f"result: {number(rate_hz)} frames per second. Frames are counted in complete intervals of {interval_s:g} s."
    )
    layout = {"xaxis": axis_from_zero(TIME_AXIS_TITLE), "yaxis": axis_from_zero("frames per second")}
    return Chart("throughput", caption, tuple(traces), layout, height=300)


def _rate_line(name: str, times_s: Floats, interval_s: float, style: Trace) -> Trace:
    known = times_s[np.isfinite(times_s)]
    intervals = int(max(known.max(initial=0.0), interval_s) // interval_s)  # Complete intervals only.
    counts, edges = np.histogram(known, np.arange(intervals + 1) * interval_s)
    hover = f"{name}: %{{y:.2f}} per second"
    return line(name, edges[:-1] + interval_s / 2, counts / interval_s, {**style, "shape": "hvh"}, hover)


def _gantt(answered: pd.DataFrame, start_ns: int) -> Chart:
    """Shows when each of some successive frames was in which stage."""
    first = max(0, (len(answered) - _GANTT_FRAMES) // 2)
    rows = answered.iloc[first : first + _GANTT_FRAMES]
    labels = [f"#{sequence}" for sequence in rows["sequence"]]
    durations = stage_durations(rows)
    traces = tuple(
        stage_bar(stage, labels, end - begin, "%{y}: %{customdata:.3f} ms", base=begin, customdata=durations[stage])
        for stage, (begin, end) in stage_intervals(rows, start_ns).items()
    )
    due = seconds_since(rows, "t_due_ns", start_ns)
    done = due + column_values(rows, "total_ms") / 1e3
    most = int(queue_depth(due, done)[1].max(initial=1))
    caption = (
        f"When each of {len(rows)} successive frames answered by a worker was in which stage. Largest number at the same time: {most}."
        f"{'' if 'uplink' in durations else _NO_SPLIT}"
    )
    layout = STACKED_LAYOUT | {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": axis(TIME_AXIS_TITLE),
        "yaxis": axis("frame", autorange="reversed", type="category"),
    }
    return Chart("gantt", caption, traces, layout, height=250 + 18 * len(rows))


def _queue_chart(intervals: dict[str, tuple[Floats, Floats]], note: str) -> Chart:
    """Shows how many frames wait in each queue on average, in successive intervals."""
    edges = np.linspace(0.0, max(float(end.max()) for _, end in intervals.values()), _QUEUE_INTERVALS + 1)
    traces: list[Trace] = []
    mean_waits = {}
    for index, (stage, queue) in enumerate(_QUEUES.items()):
        begin, end = intervals[stage]
        colour, dash = series_style(index)
        style = {"color": colour, "width": 1.5, "shape": "hvh", "dash": dash}
        depth = mean_queue_depth(begin, end, edges)
        hover = f"{queue}: %{{y:.3f}} frames on average"
        traces.append(line(f"{stage}: {queue}", (edges[:-1] + edges[1:]) / 2, depth, style, hover))
        mean_waits[queue] = 1e3 * float((end - begin).mean())
    longest = max(mean_waits, key=lambda queue: mean_waits[queue])
    caption = (
        f"Mean number of frames that wait in each queue, in {_QUEUE_INTERVALS} intervals of {number(edges[1])} s. The "
        f"longest mean wait is that for {longest}: {milliseconds(mean_waits[longest])}.{note}"
    )
    layout = {"xaxis": axis_from_zero(TIME_AXIS_TITLE), "yaxis": axis_from_zero("waiting frames, mean")}
    return Chart("queue_depth", caption, tuple(traces), layout, height=320)


def _load_chart(answered: pd.DataFrame, in_system: Floats) -> Chart:
    """Shows the total latency of each frame against the number of frames that were in the system before it."""
    rows = downsampled(answered.assign(in_system=in_system))
    loads = np.unique(in_system)
    totals = column_values(answered, "total_ms")
    medians = np.array([np.median(totals[in_system == load]) for load in loads])
    traces = (
        points(
            "frame",
            rows["in_system"].to_numpy(np.float64),
            column_values(rows, "total_ms"),
            {"color": "#6d9db5", "size": 7, "opacity": 0.5},
            "#%{customdata}: %{y:.2f} ms, %{x} frames before it",
            customdata=rows["sequence"].to_numpy(np.int32),
        ),
        line("median", loads, medians, {"color": TOTAL_COLOUR}, "median %{y:.2f} ms at %{x}", mode="lines+markers"),
    )
    least, most = (f"{milliseconds(medians[index])} with {number(int(loads[index]))}" for index in (0, -1))
    caption = (
        "Total latency of each answered frame against its load: the answered frames that were already due and had no result "
        f"yet when it became due. Median: {least}{'' if len(loads) == 1 else f', {most}'} of them."
    )
    # Ticks between whole numbers would have rounded labels.
    step = max(1, math.ceil(loads[-1] / _MAX_TICKS))
    loads_axis = axis("frames in the system before it", dtick=step, range=[loads[0] - 0.5, loads[-1] + 0.5])
    layout = {"xaxis": loads_axis, "yaxis": axis_from_zero("total, ms"), "hovermode": "closest"}
    return Chart("latency_load", caption, traces, layout, height=320)


def frames_in_system(due: Floats, done: Floats) -> Floats:
    """Returns for each frame how many others were due before it and had no result when it became due; `due` ascends."""
    before = np.arange(len(due)) - np.searchsorted(np.sort(done), due, side="right")
    return np.asarray(np.maximum(before, 0), np.float64)


def queue_depth(begin: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Returns the times at which frames enter or leave a queue, and the number of frames in it from then on.

    Frames that pass without waiting do not count.
    """
    waits = end > begin
    times = np.concatenate((begin[waits], end[waits]))
    changes = np.repeat([1.0, -1.0], int(waits.sum()))
    order = np.lexsort((changes, times))  # Frames that leave at the same time as others enter come first.
    return times[order], np.cumsum(changes[order])


def mean_queue_depth(begin: Floats, end: Floats, edges: Floats) -> Floats:
    """Returns the mean number of frames in a queue between successive edges: their waiting time divided by the interval."""
    times, depth = queue_depth(begin, end)
    if not len(times):
        return np.zeros(len(edges) - 1)
    waited = np.concatenate(([0.0], np.cumsum(depth[:-1] * np.diff(times))))
    return np.asarray(np.diff(np.interp(edges, times, waited)) / np.diff(edges), np.float64)
