"""What each cell of a study takes beside its inference; and, where codecs are compared, what they cost and save."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from bench.report.content import Part, Prose, Row, Section, Table, numbers, texts
from bench.report.data.study_log import AS_SAID, Cell, StudyLog

_TITLE = "What the journey adds to the inference"
_SPREAD = "±: the standard deviation of the runs' means, – of a single run."


def chapter(study: StudyLog) -> Section | None:
    """A row a cell, its axes in columns of their own; None where no frame was answered."""
    if study.frames.empty:
        return None
    about = Prose(
        "Overhead is a frame's total less its inference: the vehicle's own work, the way there and back, decoding, waiting "
        "and encoding. Means, unlike medians, may be subtracted: total is inference and overhead."
    )
    parts: list[Part] = [about, _table(study, "overhead", _OVERHEAD, f"Totals of the answered frames. {_SPREAD}")]
    if "codec" in study.axes:
        caption = f"What the codecs cost and save: means of the answered frames, bytes of a frame. {_SPREAD}"
        parts.append(_table(study, "codecs", _CODECS, caption))
    return Section("overhead", _TITLE, tuple(parts))


def _mean(name: str) -> "_Figure":
    return lambda frames: float(frames[name].astype(np.float64).mean())


def _spread(name: str) -> "_Figure":
    return lambda frames: float(frames.groupby("repetition")[name].mean().std(ddof=1))


def _quantile(name: str, share: float) -> "_Figure":
    return lambda frames: float(frames[name].quantile(share))


_Figure = Callable[[pd.DataFrame], float | int]
_ADDED = "overhead_ms"
_COUNTS: dict[str, _Figure] = {"runs": lambda frames: int(frames["repetition"].nunique()), "frames": len}
_TOTAL: dict[str, _Figure] = {"total mean ms": _mean("total_ms"), "± total ms": _spread("total_ms")}
_REST: dict[str, _Figure] = {"overhead mean ms": _mean(_ADDED), "± overhead ms": _spread(_ADDED)}
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


def _table(study: StudyLog, name: str, figures: dict[str, _Figure], caption: str) -> Table:
    rows: list[Row] = []
    for cell in study.cells:
        frames = study.side(cell).frames
        if len(frames):
            frames = frames.assign(**{_ADDED: frames["total_ms"] - frames["inferred_ms"]})
            rows.append((*_settings(study, cell), *(figure(frames) for figure in figures.values())))
    settings = [f"{axis} (axis)" if axis in figures else axis for axis in study.axes or ("cell",)]
    return Table(name, caption, (*texts(*settings), *numbers(*figures)), tuple(rows))


def _settings(study: StudyLog, cell: Cell) -> list[str]:
    """The values of a cell on the axes that differ; its name where none does."""
    return [_told(cell.settings[axis]) for axis in study.axes] or [cell.name]


def _told(value: Any) -> str:
    return AS_SAID if value is None else str(value)
