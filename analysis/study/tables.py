"""Writes the tidy tables of a study as CSV and Parquet: one row per run, per frame, or per step of a capacity search."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.study.accuracy import STREAMING_COLUMNS
from analysis.study.axes import AXES
from analysis.study.measurement import DONE, USAGE_COLUMNS, VERSIONS, RunResult, measure, measures_every_frame
from analysis.study.study_folder import StudyFolder
from analysis.study.study_plan import StudyCell
from shared.errors import SkylaneError
from shared.files import new_file
from shared.network.link_spec import LinkSpec
from shared.runlog.latency_log import COLUMNS, Outcome
from shared.sanitize import csv_text

_TEXT, _INTEGER, _REAL = "string", "Int64", "float64"
_KINDS = dict.fromkeys(("batch", "vehicles", "workers", "frames"), _INTEGER)
_AXES = {axis: _KINDS.get(axis, _TEXT) for axis in AXES}
_LINK = {f"link_{name}": _REAL for name in LinkSpec.model_fields}
_LINK |= dict.fromkeys(("link_slice_bytes", "link_seed"), _INTEGER)

_TOTALS = ("total_mean_ms", "total_p50_ms", "total_p90_ms", "total_p95_ms", "total_p99_ms")

RUN_COLUMNS = {
    **dict.fromkeys(("study", "cell"), _TEXT),
    **dict.fromkeys(("repetition", "order"), _INTEGER),
    **dict.fromkeys(("state", "reason", "validity", "validity_reason"), _TEXT),
    **_AXES,
    **_LINK,
    **dict.fromkeys(("seed", "drive_seed"), _INTEGER),
    "started_ns": _INTEGER,
    "measured_s": _REAL,
    "frames_read": _INTEGER,
    "frames_measured": _INTEGER,
    **{outcome.value: _INTEGER for outcome in Outcome},
    "frames_sent": _INTEGER,
    **dict.fromkeys(("throughput_hz", *_TOTALS, "query_p99_ms", "inferred_p50_ms", "crossing_p50_ms"), _REAL),
    "capacity_vehicles": _INTEGER,
    "metric": _TEXT,
    "metric_value": _REAL,
    **dict.fromkeys(USAGE_COLUMNS, _REAL),
    **dict.fromkeys(("bytes_up", "bytes_down"), _INTEGER),
    **dict.fromkeys(("bytes_per_frame", "mean_iou", "pixel_accuracy"), _REAL),
    "masks_compared": _INTEGER,
    **dict.fromkeys(STREAMING_COLUMNS, _REAL),
    **dict.fromkeys(("ticks_scored", "ticks_without_output"), _INTEGER),
    **dict.fromkeys(("model_sha256", "source_sha256", "commit", "processor"), _TEXT),
    "cores": _INTEGER,
    **dict.fromkeys(("system", "broker"), _TEXT),
    **{f"version_{name.replace('-', '_')}": _TEXT for name in VERSIONS},
}
STEP_COLUMNS = {
    **dict.fromkeys(("study", "cell"), _TEXT),
    **dict.fromkeys(("repetition", "step", "vehicles"), _INTEGER),
    **dict.fromkeys(("p99_ms", "unanswered_share", "throughput_hz"), _REAL),
    "fits": "boolean",
    "reason": _TEXT,
}


def write_runs(folder: StudyFolder, results: Sequence[RunResult]) -> pd.DataFrame:
    """Writes `runs` and, if there was a capacity search, `capacity`; returns the table of runs.

    Raises:
        TableError: A table cannot be written.
    """
    runs = _typed((result.row for result in results), RUN_COLUMNS)
    _write(folder.root, "runs", runs)
    identity = ("study", "cell", "repetition")
    steps = [{name: result.row[name] for name in identity} | dict(step) for result in results for step in result.steps]
    if steps:
        _write(folder.root, "capacity", _typed(steps, STEP_COLUMNS), ("csv",))
    return runs


def write_frames(folder: StudyFolder, study: str, runs: Iterable[tuple[StudyCell, int, RunResult]]) -> None:
    """Writes `frames`: every frame of every finished run, with its cell and phase.

    Raises:
        SkylaneError: A log cannot be read, or the table cannot be written.
    """
    tables = []
    for cell, repetition, result in runs:
        if result.state != DONE:
            continue
        identity = {"study": study, "cell": cell.name, "repetition": repetition}
        axes = {axis: result.row.get(axis) for axis in cell.columns() if axis in AXES}
        for part in result.parts:
            source = folder.run_folder(cell, repetition) / part.folder
            rows = measure(source, part.vehicles, part.warm_up, every_frame=measures_every_frame(cell)).frames
            run = rows["vehicle_run"] if part.folder == "." else f"{part.folder}/" + rows["vehicle_run"]
            played = axes | {"vehicles": part.vehicles}  # Each step of a capacity search has its own number.
            lead = pd.DataFrame({**identity, "vehicle_run": run, "phase": rows["phase"], **played}, index=rows.index)
            # Axes and log columns share names such as `model`; the log's value is the measured one.
            tables.append(pd.concat([lead.drop(columns=[*set(lead) & set(COLUMNS)]), rows[[*COLUMNS]]], axis=1))
    if tables:
        frames = pd.concat(tables, ignore_index=True)
        texts = [name for name in frames if pd.api.types.is_string_dtype(frames[name])]
        frames[texts] = frames[texts].replace("", pd.NA)  # CSV does not distinguish empty text from a missing value.
        _write(folder.root, "frames", frames)


def _typed(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    # Built by column: pandas would convert integer columns with gaps to floats, and timestamps would lose digits.
    values = list(rows)
    return pd.DataFrame({name: pd.array([row.get(name) for row in values], kind) for name, kind in columns.items()})


def _write(root: Path, name: str, table: pd.DataFrame, suffixes: Sequence[str] = ("csv", "parquet")) -> None:
    for suffix in suffixes:
        path = root / f"{name}.{suffix}"
        try:
            with new_file(path) as file:
                _guarded(table).to_csv(file, index=False) if suffix == "csv" else table.to_parquet(file, index=False)
        except OSError as error:
            raise TableError(path, error) from error


def _guarded(table: pd.DataFrame) -> pd.DataFrame:
    """Returns a table whose texts are no formulas; the logs of a study may come from somebody else."""
    texts = [name for name in table if pd.api.types.is_string_dtype(table[name])]
    return table.assign(**{name: table[name].map(csv_text, na_action="ignore") for name in texts})


class TableError(SkylaneError):
    """A table cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        self.path = path
        super().__init__(f"{path} cannot be written: {error.strerror}: free disk space, then run the study again")
