"""The tidy tables of a study: one row a run, one row a frame, one row a step of a search; as CSV and as Parquet."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.link.link import LinkSpec
from bench.study.execution.cell_run import DONE, Result, is_whole
from bench.study.plan.axes import AXES
from bench.study.plan.cell import Cell
from bench.study.results.folder import StudyFolder
from bench.study.results.measurement import USAGE, VERSIONS, measure
from shared.errors import SkylaneError
from shared.runlog.latency_log import COLUMNS, Outcome

_TEXT, _WHOLE, _REAL = "string", "Int64", "float64"
_AXES = {axis: _WHOLE if axis in ("batch", "vehicles", "workers", "frames") else _TEXT for axis in AXES}
_LINK = {f"link_{name}": _REAL for name in LinkSpec.model_fields}
_LINK |= dict.fromkeys(("link_slice_bytes", "link_seed"), _WHOLE)

RUNS = {
    "study": _TEXT,
    "cell": _TEXT,
    "repetition": _WHOLE,
    "order": _WHOLE,
    "state": _TEXT,
    "reason": _TEXT,
    "validity": _TEXT,
    "validity_reason": _TEXT,
    **_AXES,
    **_LINK,
    "seed": _WHOLE,
    "started_ns": _WHOLE,
    "measured_s": _REAL,
    "frames_read": _WHOLE,
    "frames_measured": _WHOLE,
    **{outcome.value: _WHOLE for outcome in Outcome},
    "throughput_hz": _REAL,
    "total_mean_ms": _REAL,
    "total_p50_ms": _REAL,
    "total_p90_ms": _REAL,
    "total_p95_ms": _REAL,
    "total_p99_ms": _REAL,
    "query_p99_ms": _REAL,
    "inferred_p50_ms": _REAL,
    "crossing_p50_ms": _REAL,
    "capacity_vehicles": _WHOLE,
    "metric": _TEXT,
    "metric_value": _REAL,
    **dict.fromkeys(USAGE, _REAL),
    "bytes_up": _WHOLE,
    "bytes_down": _WHOLE,
    "model_sha256": _TEXT,
    "source_sha256": _TEXT,
    "commit": _TEXT,
    "processor": _TEXT,
    "cores": _WHOLE,
    "system": _TEXT,
    "broker": _TEXT,
    **{f"version_{name.replace('-', '_')}": _TEXT for name in VERSIONS},
}
STEPS = {
    "study": _TEXT,
    "cell": _TEXT,
    "repetition": _WHOLE,
    "step": _WHOLE,
    "vehicles": _WHOLE,
    "p99_ms": _REAL,
    "unanswered_share": _REAL,
    "throughput_hz": _REAL,
    "fits": "boolean",
    "reason": _TEXT,
}


def write_runs(folder: StudyFolder, results: Sequence[Result]) -> pd.DataFrame:
    """Write `runs` and, where a capacity was searched, `capacity`; returns the runs.

    Raises:
        SkylaneError: the disk does not take them.
    """
    runs = _typed((result.row for result in results), RUNS)
    _write(folder.root, "runs", runs)
    identity = ("study", "cell", "repetition")
    steps = [{name: result.row[name] for name in identity} | dict(step) for result in results for step in result.steps]
    if steps:
        _write_csv(folder.root, "capacity", _typed(steps, STEPS))
    return runs


def write_frames(folder: StudyFolder, study: str, runs: Iterable[tuple[Cell, int, Result]]) -> None:
    """Write `frames`: every frame of every finished run, with its cell and its phase.

    Raises:
        SkylaneError: a log cannot be read any more, or the disk does not take the table.
    """
    tables = []
    for cell, repetition, result in runs:
        if result.state != DONE:
            continue
        facts = {"study": study, "cell": cell.name, "repetition": repetition}
        axes = {axis: value for axis, value in cell.columns().items() if axis in AXES}
        for part in result.parts:
            source = folder.run(cell, repetition) / part.folder
            rows = measure(source, part.vehicles, part.warm_up, whole=is_whole(cell)).frames
            run = rows["vehicle_run"] if part.folder == "." else f"{part.folder}/" + rows["vehicle_run"]
            played = axes | {"vehicles": part.vehicles}  # Of a step of a search, as many as it tried.
            lead = pd.DataFrame({**facts, "vehicle_run": run, "phase": rows["phase"], **played}, index=rows.index)
            # An axis and a column of the log can have one name, such as `model`: the log's own is what was seen.
            tables.append(pd.concat([lead.drop(columns=[*set(lead) & set(COLUMNS)]), rows[[*COLUMNS]]], axis=1))
    if tables:
        frames = pd.concat(tables, ignore_index=True)
        texts = [name for name in frames if pd.api.types.is_string_dtype(frames[name])]
        frames[texts] = frames[texts].replace("", pd.NA)  # As CSV has it, where an empty text is none.
        _write(folder.root, "frames", frames)


def _typed(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    # Column by column: a table made of rows would take whole numbers with gaps through floats, and stamps lose digits.
    found = list(rows)
    return pd.DataFrame({name: pd.array([row.get(name) for row in found], kind) for name, kind in columns.items()})


def _write(root: Path, name: str, table: pd.DataFrame) -> None:
    _write_csv(root, name, table)
    draft = root / f"{name}.parquet.new"
    try:
        table.to_parquet(draft, index=False)
        draft.replace(root / f"{name}.parquet")
    except OSError as error:
        raise TableError(root / f"{name}.parquet", error) from error


def _write_csv(root: Path, name: str, table: pd.DataFrame) -> None:
    draft = root / f"{name}.csv.new"
    try:
        table.to_csv(draft, index=False)
        draft.replace(root / f"{name}.csv")
    except OSError as error:
        raise TableError(root / f"{name}.csv", error) from error


class TableError(SkylaneError):
    """A table cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.path = path
        super().__init__(f"{path} cannot be written: {error.strerror}: make room, then run the study again")
