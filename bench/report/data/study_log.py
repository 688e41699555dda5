"""A study as it lies in its folder: its runs, its frames, and the cells they belong to."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from bench.logs.problems import Problem, ProblemCollector
from bench.report.chapters.comparisons.runs import FrameGroup
from bench.report.data.answered_frames import answered_frames
from shared.runlog.latency_log import COLUMNS, CSV_NAME, LogError
from shared.runlog.run_manifest import read_manifest

KIND: Final = "study"
DEFAULT_VALUE: Final = "as said"  # By the study or the scenario, where an axis has no value of its own.
_RUN_COLUMNS: Final = ("cell", "repetition", "state")
_RUN_TEXT: Final = ("cell", "state", "reason", "validity", "validity_reason")
_RUN_FIGURES: Final = (
    "repetition", "throughput_hz", "total_mean_ms", "total_p50_ms", "worker_cpu_percent", "worker_rss_mb", "vehicle_cpu_percent",
    "vehicle_rss_mb", "broker_cpu_percent", "gpu_percent", "gpu_memory_mb", "frames_read", "answered",
)  # fmt: skip
_LARGEST_REPETITION: Final = np.iinfo(np.int32).max
_COUNTED: Final = ("vehicles", "workers", "frames")
_NEEDED: Final = (
    "cell", "repetition", "vehicle_run", "phase", "vehicle", "camera", "sequence", "outcome", "frame_index", "t_due_ns",
    "bytes_up", "bytes_down", "worker", "t_inferred_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReportedCell:
    """One combination of the axes. `settings`: its value on each axis that differs within the study."""

    key: str
    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StudyLog:
    """What a study's folder holds; `missing` says what could not be read of it."""

    folder: Path
    manifest: Mapping[str, Any]
    runs: pd.DataFrame
    measured: pd.DataFrame  # All frames of the measured time, as the table has them; may be empty.
    frames: pd.DataFrame  # Those of them that were answered, run by run in time order.
    capacity: pd.DataFrame  # Empty where no search was made.
    cells: tuple[ReportedCell, ...]
    axes: tuple[str, ...]  # Those that differ.
    missing: tuple[Problem, ...]

    def side(self, cell: ReportedCell) -> FrameGroup:
        """The frames of a cell, to be compared."""
        frames = self.frames[self.frames["cell"] == cell.key] if len(self.frames) else self.frames
        of_cell = self.runs[self.runs["cell"] == cell.key]
        counted = of_cell.reindex(columns=["answered", "frames_read"]).sum(min_count=1)
        answered_frames = float(counted["answered"] / counted["frames_read"]) if counted["frames_read"] else np.nan
        return FrameGroup(cell.name, frames, frames["repetition"] if len(frames) else None, answered_frames)

    def pairs(self, axis: str) -> Iterator[tuple[ReportedCell, ReportedCell]]:
        """The cells that differ in one axis alone; of more than two values, each against the first."""
        order = {value: place for place, value in enumerate(dict.fromkeys(cell.settings[axis] for cell in self.cells))}
        for a, b in combinations(sorted(self.cells, key=lambda cell: order[cell.settings[axis]]), 2):
            differing = [name for name in self.axes if a.settings[name] != b.settings[name]]
            if differing == [axis] and order[a.settings[axis]] == 0:
                yield a, b


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study."""
    try:
        return read_manifest(folder).get("kind") == KIND
    except LogError:
        return False


def run_folders(folder: Path) -> tuple[Path, ...]:
    """The folders of a study's vehicles, each a run; those that left no log are in its table of runs, with their reasons."""
    return tuple(sorted(log.parent for log in folder.glob(f"cells/*/*/*/{CSV_NAME}")))


def load_study(folder: Path) -> StudyLog:
    """Read a study.

    Raises:
        LogError: it has no table of runs that can be read.
    """
    manifest = read_manifest(folder)
    runs, of_runs = _runs(folder)
    told = manifest.get("axes")
    known: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    axes = tuple(axis for axis in known if axis in runs)
    differing = tuple(axis for axis in axes if len(set(runs[axis].astype(str))) > 1)
    measured, of_frames = _frames(folder)
    # Vehicles of one run overlap in time: in the order they were due they are one series of what the system did.
    frames = answered_frames(measured).sort_values(["cell", "repetition"], kind="stable") if len(measured) else measured
    capacity, of_capacity = _capacity(folder)
    missing = (*of_runs, *of_frames, *of_capacity)
    cells = tuple(_cells(runs, differing, known))
    return StudyLog(folder, manifest, runs, measured, frames, capacity, cells, differing, missing)


def _runs(folder: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """The table of runs: a row that does not say which run it is of is left out, and so is a figure that is no number."""
    path = folder / "runs.csv"
    problems = ProblemCollector(path)
    runs = _csv(path, problems, dict.fromkeys((*_RUN_TEXT, *_RUN_FIGURES), "str"))
    lacking = [name for name in _RUN_COLUMNS if name not in runs]
    if lacking:
        raise LogError(f"{path}, row 1: it has no column {', '.join(lacking)}: run the study again")
    lines = runs.index.to_numpy(np.int64) + 2  # The header is line 1.
    for name in filter(runs.columns.__contains__, _RUN_FIGURES):
        figures = pd.to_numeric(runs[name], errors="coerce").astype(np.float64)
        figures = figures.where(np.isfinite(figures))
        wrong = (figures.isna() & runs[name].notna()).to_numpy()
        problems.add_rows(f"cells of {name}", lines[wrong], lambda _: "is no number: the cell is left out", name)
        runs[name] = figures
    is_named = runs[[*_RUN_COLUMNS]].notna().all(axis=1) & runs["repetition"].between(0, _LARGEST_REPETITION)
    nameless = ~is_named.to_numpy()
    told = f"{', '.join(_RUN_COLUMNS)} do not say which run it is of: the row is left out"
    problems.add_rows("rows of no run", lines[nameless], lambda _: told)
    return runs[~nameless].astype({"repetition": np.int64}), problems.collected()


def _csv(path: Path, problems: ProblemCollector, types: Mapping[str, Any]) -> pd.DataFrame:
    """A table of the study; a last line cut short and lines of too many fields are left out and told."""
    try:
        data = path.read_bytes()
        whole, _, cut = data.rpartition(b"\n")
        if cut:
            problems.add_rows(
                "lines cut short", np.array([data.count(b"\n") + 1]), lambda _: "is cut short: it is left out"
            )
        return pd.read_csv(
            io.BytesIO(whole), keep_default_na=False, na_values=[""], skip_blank_lines=False, dtype=types, engine="python",
            on_bad_lines=lambda fields: problems.add_file(f"the row of {fields[0]!r}, … has {len(fields)} fields, too many: it is left out"),
        )  # fmt: skip
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}: run the study first") from error
    except ValueError as error:  # What pandas' parsers raise.
        raise LogError(f"{path} is no table of a study: {' '.join(str(error).split())}") from error


def _frames(folder: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """The frames of the measured time; empty, and told, where they cannot be read."""
    path = folder / "frames.parquet"
    problems = ProblemCollector(path)
    durations = [name for name in COLUMNS if name.endswith("_ms")]
    try:
        frames = pd.read_parquet(path, columns=[*dict.fromkeys((*_NEEDED, *durations))])
        frames = frames.astype(dict.fromkeys(durations, np.float64))
    except (OSError, ValueError) as error:
        problems.add_file(f"cannot be read ({' '.join(str(error).split())[:200]}): frames are not compared")
        return pd.DataFrame(), problems.collected()
    return frames[frames["phase"] == "measured"], ()


def _capacity(folder: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """The steps of the search; empty where none was made, or, which is told, none can be read."""
    path = folder / "capacity.csv"
    problems = ProblemCollector(path)
    if not path.exists():
        return pd.DataFrame(), ()
    try:
        steps = _csv(path, problems, {"cell": "str"})
    except LogError as error:
        problems.add_file(str(error).removeprefix(f"{path} "))
        return pd.DataFrame(), problems.collected()
    if "cell" not in steps:
        problems.add_file("row 1 has no column cell: the search is left out")
        return pd.DataFrame(), problems.collected()
    return steps, problems.collected()


def _cells(runs: pd.DataFrame, axes: tuple[str, ...], known: Mapping[str, Any]) -> Iterator[ReportedCell]:
    """Each once, by its values in the order of the study's file: what stands first there is what others are held to."""

    def placed(column: pd.Series) -> pd.Series:
        values = known.get(str(column.name))
        places = {str(value): place for place, value in enumerate(values if isinstance(values, list) else ())}
        return pd.Series([places.get(str(_value(told)), len(places)) for told in column], column.index)

    cells = runs.drop_duplicates("cell").sort_values([*axes, "cell"], kind="stable")
    for _, first in (cells.sort_values([*axes], kind="stable", key=placed) if axes else cells).iterrows():
        values = {axis: _value(first[axis]) for axis in axes}
        name = " · ".join(_named(axis, value) for axis, value in values.items())
        yield ReportedCell(str(first["cell"]), name or str(first["cell"]), values)


def _value(told: Any) -> Any:
    """A value as the study's file has it: where one of a column is none, the table makes fractions of whole numbers."""
    if pd.isna(told):
        return None
    return int(told) if isinstance(told, float) and told.is_integer() else told


def _named(axis: str, value: Any) -> str:
    """A value that says by itself what it is of: `jpeg`, `4 vehicles`, `batch 8`, `frames as said`."""
    if isinstance(value, str):
        return value
    if value is None:
        return f"{axis} {DEFAULT_VALUE}"
    if axis in _COUNTED:
        return f"{value} {axis if value > 1 else axis.removesuffix('s')}"
    return f"{axis} {value}"
