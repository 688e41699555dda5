"""The accuracy of a study's cells against their bytes and latency."""

import pandas as pd

from analysis.report.chapters.traces import axis, axis_from_zero, points
from analysis.report.content import Chapter, Chart, Paragraph, ReportTable
from analysis.report.data.study_log import StudyLog
from analysis.report.stage_styles import SERIES

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
        _table(cells),
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


def _table(cells: pd.DataFrame) -> ReportTable:
    accuracies = ("mean IoU", "± mean IoU", "pixel accuracy")
    shown = cells[["runs", "masks_compared", "mean_iou", "deviation", "pixel_accuracy", _SIZE, _P50]]
    rows = tuple((name, *map(float, values)) for name, values in zip(cells.index, shown.to_numpy(), strict=True))
    caption = (
        "Means of the runs, including masks of warm-up frames; bytes and latency are those of the measured frames. ±: "
        "standard deviation of the runs, – for a single run."
    )
    headings = ("cell", "runs", "masks", *accuracies, "bytes per frame", "p50 ms")
    return ReportTable("accuracy", caption, headings, rows, dict.fromkeys(accuracies, 4))
