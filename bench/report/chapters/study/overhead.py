"""The overhead of each cell beyond its inference, and the sizes and times of the compared codecs."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from bench.report.content import Chapter, ChapterPart, Paragraph, ReportTable, TableRow
from bench.report.data.study_log import DEFAULT_VALUE, ReportedCell, StudyLog

_SPREAD_NOTE = "±: standard deviation of the runs' means, – for a single run."


def chapter(study: StudyLog) -> Chapter | None:
    """Returns one row per cell with its axis values; None if no frame was answered."""
    if study.frames.empty:
        return None
    introduction = Paragraph(
        "The overhead of a frame is its total minus its inference: the vehicle's own work, uplink and downlink, decoding, "
        "waiting and encoding. Means can be subtracted, unlike medians: total = inference + overhead."
    )
    caption = f"Total latency, inference and overhead of the answered frames. {_SPREAD_NOTE}"
    parts: list[ChapterPart] = [introduction, _table(study, "overhead", _OVERHEAD, caption)]
    if "codec" in study.axes:
        caption = f"Sizes and times of the codecs: means of the answered frames, bytes per frame. {_SPREAD_NOTE}"
        parts.append(_table(study, "codecs", _CODECS, caption))
    return Chapter("overhead", "Overhead beyond inference", tuple(parts))


_Statistic = Callable[[pd.DataFrame], float | int]


def _mean(name: str) -> _Statistic:
    return lambda frames: float(frames[name].astype(np.float64).mean())


def _spread(name: str) -> _Statistic:
    return lambda frames: float(frames.groupby("repetition")[name].mean().std(ddof=1))


def _quantile(name: str, share: float) -> _Statistic:
    return lambda frames: float(frames[name].quantile(share))


_OVERHEAD_MS = "overhead_ms"
_COUNTS: dict[str, _Statistic] = {"runs": lambda frames: int(frames["repetition"].nunique()), "frames": len}
_TOTAL: dict[str, _Statistic] = {"total mean ms": _mean("total_ms"), "± total ms": _spread("total_ms")}
_REST: dict[str, _Statistic] = {"overhead mean ms": _mean(_OVERHEAD_MS), "± overhead ms": _spread(_OVERHEAD_MS)}
_OVERHEAD = (
    _COUNTS
    | _TOTAL
    | {"total p50 ms": _quantile("total_ms", 0.5), "total p95 ms": _quantile("total_ms", 0.95)}
    | {"inferred mean ms": _mean("inferred_ms")}
    | _REST
)
_CODECS = (
    _COUNTS
    | {"bytes up": _mean("bytes_up"), "bytes down": _mean("bytes_down")}
    | {"encoded mean ms": _mean("encoded_ms"), "decoded mean ms": _mean("decoded_ms")}
    | {"crossing mean ms": _mean("crossing_ms")}
    | _TOTAL
    | _REST
)


def _table(study: StudyLog, name: str, statistics: dict[str, _Statistic], caption: str) -> ReportTable:
    rows: list[TableRow] = []
    for cell in study.cells:
        frames = study.group(cell).frames
        if len(frames):
            frames = frames.assign(**{_OVERHEAD_MS: frames["total_ms"] - frames["inferred_ms"]})
            rows.append((*_axis_values(study, cell), *(statistic(frames) for statistic in statistics.values())))
    settings = [f"{axis} (axis)" if axis in statistics else axis for axis in study.axes or ("cell",)]
    return ReportTable(name, caption, (*settings, *statistics), rows)


def _axis_values(study: StudyLog, cell: ReportedCell) -> list[str]:
    """Returns the values of a cell on the axes that vary; its name if no axis varies."""
    values = (cell.settings[axis] for axis in study.axes)
    return [DEFAULT_VALUE if value is None else str(value) for value in values] or [cell.name]
