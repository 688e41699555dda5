"""The throughput of a run."""

import numpy as np
import pandas as pd

from bench.logs.run_log import RunLog
from bench.offloading.cost import throughput_hz
from bench.report.chapters.traces import axis_from_zero, line, not_measured
from bench.report.content import Chapter, Chart, Trace
from bench.report.data.answered_frames import TIME_AXIS_TITLE, seconds_since
from bench.report.output.number_format import number
from bench.report.output.stage_styles import OUTCOME_COLOURS, TOTAL_COLOUR
from bench.statistics.bootstrap import Floats
from shared.runlog.latency_log import Outcome

_MAX_INTERVALS = 200


def chapter(run: RunLog, start_ns: int) -> Chapter:
    """Returns due and answered frames per second over time."""
    rate_hz = throughput_hz(run)
    if not np.isfinite(rate_hz):
        return not_measured("throughput", "Throughput")
    return Chapter("throughput", "Throughput", (_chart(run.frames, start_ns, rate_hz),))


def _chart(frames: pd.DataFrame, start_ns: int, rate_hz: float) -> Chart:
    answered = frames[frames["outcome"] == Outcome.ANSWERED].dropna(subset=["t_due_ns", "t_mask_decoded_ns"])
    duration_s = len(answered) / rate_hz
    due = seconds_since(frames, "t_due_ns", start_ns)
    done = seconds_since(answered, "t_mask_decoded_ns", start_ns)
    interval_s = max(1.0, np.ceil(np.nanmax(np.concatenate((due, done))) / _MAX_INTERVALS))
    traces = (
        _rate_line("frames due", due, interval_s, {"color": TOTAL_COLOUR, "dash": "dot", "width": 1.5}),
        _rate_line("frames answered", done, interval_s, {"color": OUTCOME_COLOURS["answered"], "width": 2.2}),
    )
    caption = (
        f"{len(answered):,} frames were answered in {number(duration_s)} s, between the due time of the first frame and "
        f"the last decoded result: {number(rate_hz)} frames per second. Frames are counted in intervals of "
        f"{interval_s:g} s; an incomplete interval at the end is not drawn."
    )
    layout = {
        "xaxis": axis_from_zero(TIME_AXIS_TITLE),
        "yaxis": axis_from_zero("frames per second"),
        "showlegend": True,
    }
    return Chart("throughput", caption, traces, layout, height=300)


def _rate_line(name: str, times_s: Floats, interval_s: float, style: Trace) -> Trace:
    known = times_s[np.isfinite(times_s)]
    intervals = int(max(known.max(initial=0.0), interval_s) // interval_s)  # Complete intervals only.
    counts, edges = np.histogram(known, np.arange(intervals + 1) * interval_s)
    hover = f"{name}: %{{y:.2f}} per second"
    return line(name, edges[:-1] + interval_s / 2, counts / interval_s, {**style, "shape": "hvh"}, hover)
