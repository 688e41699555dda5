"""The clock offset between vehicle and workers, its error bound, and the crossings smaller than this bound."""

import numpy as np
import pandas as pd

from analysis.report.chapters.traces import axis, axis_from_zero, line, not_measured, points
from analysis.report.content import Chapter, Chart, Paragraph, ReportTable, TableRow, Trace
from analysis.report.data.answered_frames import TIME_AXIS_TITLE, column_values, downsampled, seconds_since
from analysis.report.output.number_format import milliseconds, number
from analysis.report.stage_styles import STAGES, series_style, with_opacity
from analysis.statistics.bootstrap import Floats

_TIME_AXIS = axis_from_zero(TIME_AXIS_TITLE)
_INTRODUCTION = (
    "Vehicle and worker each take timestamps from their own clock. Durations within one node, the total and the crossing "
    "(uplink and downlink together) need no common clock and are exact. Only the split of the crossing into uplink and "
    "downlink depends on the clock offset shown here. The offset is measured with an error bound that holds even if "
    "uplink and downlink differ; within this bound, the true offset cannot be determined."
)


def chapter(answered: pd.DataFrame, start_ns: int) -> Chapter:
    """Returns offsets, error bounds and unresolved crossings of the answered frames."""
    timed = answered[answered["clock_error_ms"].notna() & answered["clock_offset_ms"].notna()]
    if timed.empty:
        reason = "no row has a clock offset, so uplink and downlink are only known together, as the crossing"
        return not_measured("clocks", "Clocks", reason)
    unresolved = {direction: _unresolved(timed, direction) for direction in ("uplink", "downlink")}
    parts = (
        Paragraph(_INTRODUCTION),
        _offset_chart(timed, start_ns),
        _crossing_chart(timed, start_ns),
        _table(timed, unresolved),
    )
    return Chapter("clocks", "Clocks", parts)


def _unresolved(timed: pd.DataFrame, direction: str) -> Floats:
    """Returns 1 where a crossing does not exceed its error bound, else 0; computed where the log has no value."""
    resolved = column_values(timed, f"{direction}_resolved")
    is_larger = column_values(timed, f"{direction}_ms") > column_values(timed, "clock_error_ms")
    return np.where(np.isfinite(resolved), resolved == 0, ~is_larger).astype(np.float64)


def _offset_chart(timed: pd.DataFrame, start_ns: int) -> Chart:
    traces: list[Trace] = []
    for index, (worker, worker_rows) in enumerate(timed.groupby("worker", sort=False)):
        rows = downsampled(worker_rows)
        times_s = seconds_since(rows, "t_due_ns", start_ns)
        offset, error = column_values(rows, "clock_offset_ms"), column_values(rows, "clock_error_ms")
        colour, dash = series_style(index)
        limit = line("", times_s, offset - error, {"width": 0}, hoverinfo="skip", showlegend=False)
        band = {"y": offset + error, "fill": "tonexty", "fillcolor": with_opacity(colour, 0.18)}
        style = {"color": colour, "dash": dash, "width": 2}
        hover = "%{y:.3f} ms ± %{customdata:.3f} ms"
        traces += [limit, limit | band, line(str(worker), times_s, offset, style, hover, customdata=error)]
    offset = column_values(timed, "clock_offset_ms")
    caption = (
        f"Clock of the worker minus clock of the vehicle, with its error bound (shaded): between "
        f"{number(float(offset.min()), 3)} and {number(float(offset.max()), 3)} ms."
    )
    layout = {"xaxis": _TIME_AXIS, "yaxis": axis("clock offset, ms")}
    return Chart("clock_offset", caption, tuple(traces), layout, height=300)


def _crossing_chart(timed: pd.DataFrame, start_ns: int) -> Chart:
    rows = downsampled(timed)
    times_s = seconds_since(rows, "t_due_ns", start_ns)
    traces = [
        points(
            direction,
            times_s,
            column_values(rows, f"{direction}_ms"),
            {"color": STAGES[direction].colour, "size": 5, "symbol": symbol, "opacity": 0.8},
            f"{direction}: %{{y:.3f}} ms",
        )
        for direction, symbol in (("uplink", "circle"), ("downlink", "diamond-open"))
    ]
    style = {"color": "#b5480f", "width": 1.5, "dash": "dash"}
    hover = "error bound: %{y:.3f} ms"
    traces.append(line("error bound", times_s, column_values(rows, "clock_error_ms"), style, hover))
    up, down, error = (
        float(np.median(column_values(timed, f"{name}_ms"))) for name in ("uplink", "downlink", "clock_error")
    )
    caption = (
        "Uplink and downlink of each frame with the error bound of the clock offset; points below the line are not "
        f"resolved. Medians: uplink {milliseconds(up)}, downlink {milliseconds(down)}, error bound {milliseconds(error)}."
    )
    layout = {"xaxis": _TIME_AXIS, "yaxis": axis_from_zero("one-way time, ms")}
    return Chart("crossings", caption, tuple(traces), layout, height=300)


def _table(timed: pd.DataFrame, unresolved: dict[str, Floats]) -> ReportTable:
    rows: list[TableRow] = []
    for worker, worker_rows in timed.assign(**unresolved).groupby("worker", sort=False):
        medians = (
            float(np.median(column_values(worker_rows, f"{name}_ms")))
            for name in ("clock_offset", "clock_error", "uplink", "downlink")
        )
        shares = (100 * float(column_values(worker_rows, direction).mean()) for direction in unresolved)
        rows.append((str(worker), len(worker_rows), *medians, *shares))
    headings = (
        "worker", "frames", "offset p50 ms", "error bound p50 ms", "uplink p50 ms", "downlink p50 ms",
        "uplinks not resolved %", "downlinks not resolved %",
    )  # fmt: skip
    caption = (
        "Clock of each worker compared with the vehicle's, over the answered frames. Of a crossing that is not resolved, "
        "because it does not exceed its error bound, only the sum of uplink and downlink is known."
    )
    return ReportTable("clocks", caption, headings, rows)
