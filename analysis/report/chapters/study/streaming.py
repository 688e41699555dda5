"""The streaming accuracy of a study's cells: how right what a vehicle could act on was at each tick."""

import numpy as np
import pandas as pd

from analysis.report.chapters.streaming import error_bars
from analysis.report.chapters.traces import axis_from_zero, points
from analysis.report.content import Chapter, Chart, Paragraph, ReportTable, TableRow
from analysis.report.data.study_log import ReportedCell, StudyLog
from analysis.report.output.number_format import number
from analysis.report.stage_styles import SERIES
from analysis.statistics.description import IntervalEstimate, mean_of_runs

_ACCURACY, _ALL_TICKS, _CEILING = "streaming_mean_iou", "streaming_mean_iou_all_ticks", "mean_iou"
_AGES = ("output_age_p50_ms", "output_age_p95_ms")
_COUNTS = ("ticks_scored", "ticks_without_output")
_DIGITS = 3
_AXIS, _NONE, _NO_PRESENTER = "present", "none", "no presenter"
_Cells = list[tuple[ReportedCell, pd.DataFrame]]


def chapter(study: StudyLog) -> Chapter | None:
    """Returns the streaming accuracy of each cell; None if the study did not measure it."""
    runs = study.runs.reindex(columns=["cell", _ACCURACY, _ALL_TICKS, _CEILING, *_AGES, *_COUNTS])
    runs = runs[runs[_ACCURACY].notna()]
    if runs.empty:
        return None
    cells = [(cell, rows) for cell in study.cells if len(rows := runs[runs["cell"] == cell.key])]
    introduction = Paragraph(
        "At each tick, which is a frame at the time at which it is due, what the vehicle could act on was compared with the "
        "true labels of that tick: the output of its presenter, or without one the newest result. The ceiling is the mean "
        "IoU of the same results for their own frames, as if they had taken no time."
    )
    return Chapter("streaming", "Streaming accuracy", (introduction, _chart(cells), _table(cells)))


def _chart(cells: _Cells) -> Chart:
    """Shows the accuracy of each cell against the age of its outputs, with a series for each presenter."""
    series: dict[str, _Cells] = {}
    for cell, rows in cells:
        series.setdefault(str(cell.settings.get(_AXIS, "cell")), []).append((cell, rows))
    traces = []
    for index, (presenter, members) in enumerate(series.items()):
        estimates = [mean_of_runs(rows[_ACCURACY]) for _, rows in members]
        colour = SERIES[index % len(SERIES)]
        name = _NO_PRESENTER if presenter == _NONE else presenter
        marker = {"size": 10, "color": colour, "symbol": index, "line": {"width": 1, "color": "#ffffff"}}
        ages = [float(rows[_AGES[0]].mean()) for _, rows in members]
        hover = "%{customdata}<br>mean IoU %{y:.3f} at an age of %{x:.0f} ms"
        labels = [cell.name for cell, _ in members]
        values = [each.value for each in estimates]
        bars = error_bars(estimates, colour)
        traces.append(points(name, ages, values, marker, hover, customdata=labels, error_y=bars))
    best, rows = max(cells, key=lambda each: float(each[1][_ACCURACY].mean()))
    caption = (
        "Streaming accuracy against the median age of the outputs: one mark per cell, mean of its runs with the 95 % interval "
        f"over runs. Best: {best.name}, mean IoU {number(float(rows[_ACCURACY].mean()), _DIGITS)}. Point at a mark for its cell."
    )
    layout = {
        "xaxis": axis_from_zero("median age of the output at its tick, ms"),
        "yaxis": axis_from_zero("streaming mean IoU"),
        "hovermode": "closest",
    }
    return Chart("streaming_cells", caption, tuple(traces), layout, height=320)


def _table(cells: _Cells) -> ReportTable:
    headings = (
        "cell", "runs", "ticks", "mean IoU", "mean IoU, all ticks", "ceiling", "age p50 ms", "age p95 ms", "without output %",
    )  # fmt: skip
    rows: list[TableRow] = []
    for cell, runs in cells:
        estimates: list[IntervalEstimate] = [mean_of_runs(runs[column]) for column in (_ACCURACY, _ALL_TICKS, _CEILING)]
        ages = [float(runs[column].mean()) for column in _AGES]
        scored, without = (float(runs[column].sum()) for column in _COUNTS)
        rows.append(
            (cell.name, len(runs), int(scored), *estimates, *ages, 100 * without / scored if scored else np.nan)
        )
    caption = (
        "Means of the runs with 95 % intervals over runs, of the ticks after the warm-up. All ticks: those without an output "
        "count as wrong."
    )
    digits = dict.fromkeys(headings[3:6], _DIGITS) | {"age p50 ms": 0, "age p95 ms": 0, "without output %": 1}
    return ReportTable("streaming_cells", caption, headings, rows, digits)
