"""How many frames came back a second."""

import numpy as np
import pandas as pd

from bench.logs.run_log import RunLog
from bench.offloading.cost import throughput_hz
from bench.report.content import Chapter, Chart, Paragraph, Trace
from bench.report.data.answered_frames import TIME_AXIS_TITLE, Floats, seconds_since
from bench.report.output.number_format import number
from bench.report.output.stage_styles import OUTCOME_COLOURS, TOTAL_COLOUR
from shared.runlog.latency_log import Outcome

_TITLE = "Throughput"
_MOST_SPANS = 200


def chapter(run: RunLog, start_ns: int) -> Chapter:
    """Answered and due frames a second over time."""
    rate_hz = throughput_hz(run)
    if not np.isfinite(rate_hz):
        return Chapter("throughput", _TITLE, (Paragraph("Not measured: no frame was answered."),))
    return Chapter("throughput", _TITLE, (_chart(run.frames, start_ns, rate_hz),))


def _chart(frames: pd.DataFrame, start_ns: int, rate_hz: float) -> Chart:
    answered = frames[frames["outcome"] == Outcome.ANSWERED].dropna(subset=["t_due_ns", "t_mask_decoded_ns"])
    lasted_s = len(answered) / rate_hz
    due = seconds_since(frames, "t_due_ns", start_ns)
    done = seconds_since(answered, "t_mask_decoded_ns", start_ns)
    span_s = max(1.0, np.ceil(np.nanmax(np.concatenate((due, done))) / _MOST_SPANS))
    traces = (
        _line("frames due", due, span_s, {"color": TOTAL_COLOUR, "dash": "dot", "width": 1.5}),
        _line("frames answered", done, span_s, {"color": OUTCOME_COLOURS["answered"], "width": 2.2}),
    )
    told = (
        f"{len(answered):,} frames were answered in {number(lasted_s)} s, from the first one due to the last result "
        f"decoded: {number(rate_hz)} a second. Counted in spans of {span_s:g} s; what is left at the end is no whole "
        "span and not drawn."
    )
    layout = {
        "xaxis": {"title": {"text": TIME_AXIS_TITLE}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "frames a second"}, "rangemode": "tozero"},
        "showlegend": True,
    }
    return Chart("throughput", told, traces, layout, height=300)


def _line(name: str, at_s: Floats, span_s: float, line: Trace) -> Trace:
    known = at_s[np.isfinite(at_s)]
    spans = int(max(known.max(initial=0.0), span_s) // span_s)  # The last one is not whole.
    counts, edges = np.histogram(known, np.arange(spans + 1) * span_s)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": edges[:-1] + span_s / 2,
        "y": counts / span_s,
        "line": {**line, "shape": "hvh"},
        "hovertemplate": f"{name}: %{{y:.2f}} a second<extra></extra>",
    }
