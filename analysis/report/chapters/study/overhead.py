"""The overhead of each cell beyond its inference, and the sizes and times of the compared codecs."""

import numpy as np

from analysis.report.content import Chapter, ChapterPart, Paragraph, ReportTable, TableRow
from analysis.report.data.report_input import DEFAULT_VALUE, ReportedCell, StudyLog

_SPREAD_NOTE = "±: standard deviation of the runs' means, – for a single run."


def chapter(study: StudyLog) -> Chapter | None:
    """Returns one row per cell with its axis values, twice if `codec` is an axis; None if no frame was answered."""
    if study.answered.empty:
        return None
    introduction = Paragraph(
        "The overhead of a frame is its total minus its inference: the vehicle's own work, uplink and downlink, decoding, "
        "waiting and encoding. Means can be subtracted, unlike medians: total = inference + overhead."
    )
    caption = f"Total latency, inference and overhead of the frames answered by a worker. {_SPREAD_NOTE}"
    parts: list[ChapterPart] = [introduction, _table(study, "overhead", _OVERHEAD, caption)]
    if "codec" in study.axes:
        caption = f"Sizes and times of the codecs: means of the answered frames, bytes per frame. {_SPREAD_NOTE}"
        parts.append(_table(study, "codecs", _CODECS, caption))
    return Chapter("overhead", "Overhead beyond inference", tuple(parts))


# The columns of the frames, and their statistics, by heading.
_TOTAL = {"total mean ms": ("total_ms", "mean"), "± total ms": ("total_ms", "spread")}
_REST = {"overhead mean ms": ("overhead_ms", "mean"), "± overhead ms": ("overhead_ms", "spread")}
_OVERHEAD = {
    **_TOTAL,
    "total p50 ms": ("total_ms", "p50"),
    "total p95 ms": ("total_ms", "p95"),
    "inferred mean ms": ("inferred_ms", "mean"),
    **_REST,
}
_CODECS = {
    "bytes up": ("bytes_up", "mean"),
    "bytes down": ("bytes_down", "mean"),
    "encoded mean ms": ("encoded_ms", "mean"),
    "decoded mean ms": ("decoded_ms", "mean"),
    "crossing mean ms": ("crossing_ms", "mean"),
    **_TOTAL,
    **_REST,
}


def _table(study: StudyLog, name: str, columns: dict[str, tuple[str, str]], caption: str) -> ReportTable:
    frames = study.answered.assign(overhead_ms=study.answered["total_ms"] - study.answered["inferred_ms"])
    values = frames[sorted({column for column, _ in columns.values()})].astype(np.float64)
    by_cell = values.groupby(frames["cell"])
    by_run = values.groupby([frames["cell"], frames["repetition"]])
    statistics = {
        "mean": by_cell.mean(),
        "spread": by_run.mean().groupby("cell").std(),
        "p50": by_cell.quantile(0.5),
        "p95": by_cell.quantile(0.95),
    }
    counts = frames.groupby("cell")["repetition"].agg(["nunique", "size"])
    rows: list[TableRow] = [
        (
            *_axis_values(study, cell),
            *map(int, counts.loc[cell.key]),
            *(float(statistics[how].loc[cell.key, column]) for column, how in columns.values()),
        )
        for cell in study.cells
        if cell.key in counts.index
    ]
    headings = ("runs", "frames", *columns)
    settings = [f"{axis} (axis)" if axis in headings else axis for axis in study.axes or ("cell",)]
    return ReportTable(name, caption, (*settings, *headings), rows)


def _axis_values(study: StudyLog, cell: ReportedCell) -> list[str]:
    """Returns the values of a cell on the axes that vary; its name if no axis varies."""
    values = (cell.settings[axis] for axis in study.axes)
    return [DEFAULT_VALUE if value is None else str(value) for value in values] or [cell.name]
