"""The accuracy of a study's cells: of their masks against bytes and latency, and their streaming accuracy."""

import numpy as np
import pandas as pd

from analysis.report.chapters.streaming import AT_TICK, FOR_TICK, MEASURES, error_bars
from analysis.report.chapters.traces import axis, axis_from_zero, points
from analysis.report.content import Chapter, Chart, Paragraph, ReportTable, TableRow
from analysis.report.data.report_input import ReportedCell, StudyLog
from analysis.report.output.number_format import number
from analysis.report.stage_styles import SERIES
from analysis.statistics.description import IntervalEstimate, mean_of_runs
from shared.runlog.mean_interval import MIN_RUNS

_SIZE, _P50 = "bytes_per_frame", "total_p50_ms"


def chapter(study: StudyLog) -> Chapter | None:
    """Returns accuracy, bytes and median latency of each cell; None if the study did not measure accuracy."""
    runs = study.runs.reindex(columns=["cell", "mean_iou", "pixel_accuracy", "masks_compared", _SIZE, _P50])
    runs = runs[runs[["mean_iou", _SIZE, _P50]].notna().all(axis=1)]
    if runs.empty:
        return None
    by_cell = runs.groupby("cell")
    cells = by_cell.mean().assign(runs=by_cell.size(), deviation=by_cell["mean_iou"].std())
    cells = cells.loc[[cell.key for cell in study.cells if cell.key in cells.index]].rename(index=study.cell_names)
    introduction = Paragraph(
        "The returned masks were compared with the true labels of the bag. Mean IoU: intersection over union of a class, "
        "averaged over the classes in the true labels except none. Bytes: a frame and its result together."
    )
    parts = (
        introduction,
        _chart("accuracy_bytes", "bytes", cells, cells[_SIZE] / 1e3, "size of frame and result together, kB"),
        _chart("accuracy_latency", "latency", cells, cells[_P50], "median total of a run, ms"),
        _table(cells, study.recording_note),
    )
    return Chapter("accuracy", "Accuracy against bytes and latency", parts)


def _chart(name: str, against: str, cells: pd.DataFrame, x: pd.Series, title: str) -> Chart:
    """Shows the mean IoU of each cell against another value of the cell."""
    best = cells["mean_iou"].idxmax()
    caption = (
        f"Accuracy against {against}: one mark per cell, mean of its runs; better is further up and to the left. Best: "
        f"{best}, mean IoU {cells['mean_iou'].max():.4f}. Point at a mark for its cell."
    )
    marker = {"size": 10, "color": SERIES[0], "line": {"width": 1, "color": "#ffffff"}}
    hover = "%{customdata}<br>mean IoU %{y:.4f} at %{x:.2f}"
    trace = points("cell", x.tolist(), cells["mean_iou"].tolist(), marker, hover, customdata=cells.index.tolist())
    layout = {"xaxis": axis_from_zero(title), "yaxis": axis("mean IoU"), "hovermode": "closest"}
    return Chart(name, caption, (trace,), layout, height=320)


def _table(cells: pd.DataFrame, note: str) -> ReportTable:
    accuracies = ("mean IoU", "± mean IoU", "pixel accuracy")
    shown = cells[["runs", "masks_compared", "mean_iou", "deviation", "pixel_accuracy", _SIZE, _P50]]
    rows = tuple((name, *map(float, values)) for name, values in zip(cells.index, shown.to_numpy(), strict=True))
    caption = (
        "Means of the runs, including masks of warm-up frames; bytes and latency are those of the measured frames. Run p50: "
        f"mean of the runs' medians. ±: standard deviation of the runs, – for a single run. {note}"
    ).rstrip()
    headings = ("cell", "runs", "masks", *accuracies, "bytes per frame", "run p50 ms")
    return ReportTable("accuracy", caption, headings, rows, dict.fromkeys(accuracies, 4))


_ACCURACY, _ALL_TICKS, _CEILING = "at_tick_mean_iou", "at_tick_mean_iou_all_ticks", "mean_iou"
_MADE, _AFTER_DUE = "for_tick_mean_iou", ("after_due_p50_ms", "after_due_p95_ms")
_AGES = ("output_age_p50_ms", "output_age_p95_ms")
_COUNTS = ("ticks_scored", "ticks_without_output")
_DIGITS = 3
_AXIS, _NONE, _NO_PRESENTER = "present", "none", "no presenter"
_Cells = list[tuple[ReportedCell, pd.DataFrame]]


def streaming_chapter(study: StudyLog) -> Chapter | None:
    """Returns the streaming accuracy of each cell; None if the study did not measure it."""
    runs = study.runs.reindex(columns=["cell", _ACCURACY, _ALL_TICKS, _MADE, _CEILING, *_AGES, *_AFTER_DUE, *_COUNTS])
    runs = runs[runs[[_ACCURACY, _ALL_TICKS]].notna().any(axis=1)]  # A run without any output has the second only.
    if runs.empty:
        return None
    cells = [(cell, rows) for cell in study.cells if len(rows := runs[runs["cell"] == cell.key])]
    introduction = Paragraph(
        "Outputs were compared with the true labels of a tick, which is a frame at the time at which it is due: those of the "
        f"presenter, or without one the results as they came back. {MEASURES} The ceiling is the mean IoU of the same results "
        "for their own frames, as if they had taken no time."
    )
    parts = (introduction, _streaming_chart(cells), _streaming_table(cells, study.recording_note))
    return Chapter("streaming", "Streaming accuracy", parts)


def _streaming_chart(cells: _Cells) -> Chart:
    """Shows the accuracy of each cell against the age of its outputs, with a series for each presenter."""
    series: dict[str, _Cells] = {}
    for cell, rows in cells:
        series.setdefault(str(cell.settings.get(_AXIS, "cell")), []).append((cell, rows))
    traces = []
    for index, (presenter, members) in enumerate(series.items()):
        estimates = [mean_of_runs(rows[_ACCURACY], share_of=1) for _, rows in members]
        colour = SERIES[index % len(SERIES)]
        name = _NO_PRESENTER if presenter == _NONE else presenter
        marker = {"size": 10, "color": colour, "symbol": index, "line": {"width": 1, "color": "#ffffff"}}
        ages = [float(rows[_AGES[0]].mean()) for _, rows in members]
        hover = "%{customdata}<br>mean IoU %{y:.3f} at an age of %{x:.0f} ms"
        labels = [cell.name for cell, _ in members]
        values = [each.value for each in estimates]
        bars = error_bars(estimates, colour)
        traces.append(points(name, ages, values, marker, hover, customdata=labels, error_y=bars))
    caption = (
        f"Streaming accuracy {AT_TICK} against the median age of the outputs: one mark per cell, mean of its runs with the 95 % interval "
        f"over runs.{_best(cells)} Point at a mark for its cell."
    )
    layout = {
        "xaxis": axis_from_zero("median age of the output at its tick, ms"),
        "yaxis": axis_from_zero(f"mean IoU {AT_TICK}"),
        "hovermode": "closest",
    }
    return Chart("streaming_cells", caption, tuple(traces), layout, height=320)


def _best(cells: _Cells) -> str:
    """Names the cell with the highest accuracy over all ticks, among those that had an output."""
    known = [(cell, rows) for cell, rows in cells if rows[[_ACCURACY, _ALL_TICKS]].notna().any().all()]
    means = {cell.name: float(rows[_ALL_TICKS].mean()) for cell, rows in known}
    best = max(means, key=lambda name: means[name], default="")
    return f" Best {AT_TICK}: {best}, mean IoU {number(means[best], _DIGITS)} over all ticks." if best else ""


def _streaming_table(cells: _Cells, note: str) -> ReportTable:
    headings = (
        "cell", "runs", "ticks", AT_TICK, f"{AT_TICK}, all ticks", FOR_TICK, "ceiling", "age p50 ms", "age p95 ms",
        "after due p50 ms", "after due p95 ms", "without output %",
    )  # fmt: skip
    rows: list[TableRow] = []
    for cell, runs in cells:
        columns = (_ACCURACY, _ALL_TICKS, _MADE, _CEILING)
        estimates: list[IntervalEstimate] = [mean_of_runs(runs[column], share_of=1) for column in columns]
        ages = [float(runs[column].mean()) for column in (*_AGES, *_AFTER_DUE)]
        scored, without = (float(runs[column].sum()) for column in _COUNTS)
        rows.append(
            (cell.name, len(runs), int(scored), *estimates, *ages, 100 * without / scored if scored else np.nan)
        )
    caption = (
        f"Mean IoU, ages and times after due: means of the runs, of the ticks after the warm-up, with 95 % intervals over {MIN_RUNS} or "
        "more runs that differ. All ticks: those without an output count as wrong. Age and share without output are those at the "
        f"tick. {note}"
    ).rstrip()
    digits = dict.fromkeys(headings[3:7], _DIGITS) | dict.fromkeys(headings[7:11], 0) | {"without output %": 1}
    return ReportTable("streaming_cells", caption, headings, rows, digits)
