"""What the clocks can tell: the offset between vehicle and worker, its bound, and the crossings it cannot split."""

import numpy as np
import pandas as pd

from bench.report.content import Chapter, Chart, Paragraph, ReportTable, TableRow, Trace, number_columns, text_columns
from bench.report.data.answered_frames import TIME_AXIS_TITLE, Floats, column_values, downsampled, seconds_since
from bench.report.output.number_format import milliseconds, number, share
from bench.report.output.stage_styles import STAGES, series_style, with_opacity

_TIME = {"title": {"text": TIME_AXIS_TITLE}, "rangemode": "tozero"}
_WORD = (
    "Vehicle and worker each stamp with a clock of their own. Durations within one node, the total and the crossing (up "
    "and down together) need no common clock and are exact. Only how the crossing splits into uplink and downlink rests "
    "on the offset shown here. The bound holds however asymmetric the link is; inside it, nothing can tell where the "
    "truth lies."
)


def chapter(known: pd.DataFrame, start_ns: int) -> Chapter:
    """Offset, bound and unresolved crossings of the answered frames."""
    timed = known[known["clock_error_ms"].notna() & known["clock_offset_ms"].notna()]
    if timed.empty:
        nothing = Paragraph(
            "Not measured: no row has a clock offset, so the crossings are known only up and down together."
        )
        return Chapter("clocks", "Clocks", (nothing,))
    unresolved = {side: _unresolved(timed, side) for side in ("uplink", "downlink")}
    parts = (
        Paragraph(_WORD),
        _offsets(timed, start_ns),
        _crossings(timed, start_ns),
        _table(timed, unresolved),
        Paragraph(_told(timed, unresolved)),
    )
    return Chapter("clocks", "Clocks", parts)


def _unresolved(timed: pd.DataFrame, side: str) -> Floats:
    """1 where a crossing is not larger than its bound, else 0: by the log's own mark, or where it has none, worked out."""
    marked = column_values(timed, f"{side}_resolved")
    worked_out = column_values(timed, f"{side}_ms") > column_values(timed, "clock_error_ms")
    return np.where(np.isfinite(marked), marked == 0, ~worked_out).astype(np.float64)


def _told(timed: pd.DataFrame, unresolved: dict[str, Floats]) -> str:
    error = float(np.median(column_values(timed, "clock_error_ms")))
    up, down = (float(values.mean()) for values in unresolved.values())
    told = f"Half the frames know the offset to within {milliseconds(error)}. "
    if not up and not down:
        return told + "Every uplink and every downlink is larger than its bound: their sizes can be told apart from 0."
    return told + (
        f"{share(up)} of the uplinks and {share(down)} of the downlinks are not larger than their bound: of these, only "
        "the sum of both is known."
    )


def _offsets(timed: pd.DataFrame, start_ns: int) -> Chart:
    traces: list[Trace] = []
    for place, (worker, of_worker) in enumerate(timed.groupby("worker", sort=False)):
        rows = downsampled(of_worker)
        at_s = seconds_since(rows, "t_due_ns", start_ns)
        offset, error = column_values(rows, "clock_offset_ms"), column_values(rows, "clock_error_ms")
        colour, dash = series_style(place)
        band = {
            "type": "scatter",
            "mode": "lines",
            "x": at_s,
            "line": {"width": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        traces += [
            band | {"y": offset - error},
            band | {"y": offset + error, "fill": "tonexty", "fillcolor": with_opacity(colour, 0.18)},
            {
                "type": "scatter", "mode": "lines", "name": str(worker), "x": at_s, "y": offset, "customdata": error,
                "line": {"color": colour, "dash": dash, "width": 2},
                "hovertemplate": "%{y:.3f} ms ± %{customdata:.3f} ms<extra></extra>",
            },
        ]  # fmt: skip
    offset = column_values(timed, "clock_offset_ms")
    caption = (
        f"The worker's clock minus the vehicle's, and (shaded) the bound around it: from {number(float(offset.min()), 3)} to "
        f"{number(float(offset.max()), 3)} ms."
    )
    layout = {"xaxis": _TIME, "yaxis": {"title": {"text": "clock offset, ms"}}, "showlegend": True}
    return Chart("clock_offset", caption, tuple(traces), layout, height=300)


def _crossings(timed: pd.DataFrame, start_ns: int) -> Chart:
    rows = downsampled(timed)
    at_s = seconds_since(rows, "t_due_ns", start_ns)
    traces = [
        {
            "type": "scatter", "mode": "markers", "name": side, "x": at_s, "y": column_values(rows, f"{side}_ms"),
            "marker": {"color": STAGES[side].colour, "size": 5, "symbol": symbol, "opacity": 0.8},
            "hovertemplate": f"{side}: %{{y:.3f}} ms<extra></extra>",
        }
        for side, symbol in (("uplink", "circle"), ("downlink", "diamond-open"))
    ]  # fmt: skip
    traces.append({
        "type": "scatter", "mode": "lines", "name": "bound", "x": at_s, "y": column_values(rows, "clock_error_ms"),
        "line": {"color": "#b5480f", "width": 1.5, "dash": "dash"}, "hovertemplate": "bound: %{y:.3f} ms<extra></extra>",
    })  # fmt: skip
    up, down, error = (
        float(np.median(column_values(timed, f"{name}_ms"))) for name in ("uplink", "downlink", "clock_error")
    )
    caption = (
        f"Crossings and their bound: what lies under the line is not resolved. Medians: uplink {milliseconds(up)}, "
        f"downlink {milliseconds(down)}, bound {milliseconds(error)}."
    )
    layout = {"xaxis": _TIME, "yaxis": {"title": {"text": "one way, ms"}, "rangemode": "tozero"}, "showlegend": True}
    return Chart("crossings", caption, tuple(traces), layout, height=300)


def _table(timed: pd.DataFrame, unresolved: dict[str, Floats]) -> ReportTable:
    rows: list[TableRow] = []
    for worker, of_worker in timed.assign(**unresolved).groupby("worker", sort=False):
        medians = (
            float(np.median(column_values(of_worker, f"{name}_ms")))
            for name in ("clock_offset", "clock_error", "uplink", "downlink")
        )
        shares = (100 * float(column_values(of_worker, side).mean()) for side in unresolved)
        rows.append((str(worker), len(of_worker), *medians, *shares))
    columns = (
        *text_columns("worker"),
        *number_columns(
            "frames", "offset p50 ms", "bound p50 ms", "uplink p50 ms", "downlink p50 ms", "uplinks not resolved %",
            "downlinks not resolved %",
        ),
    )  # fmt: skip
    return ReportTable(
        "clocks", "The clock of each worker against the vehicle's, over its answered frames.", columns, tuple(rows)
    )
