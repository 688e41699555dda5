"""A study as it lies in its folder: its runs, its frames, and the cells they belong to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pandas as pd

from bench.report.answers import answered
from bench.report.chapters.comparison import Side
from shared.latency_log import COLUMNS, LogError
from shared.run_manifest import read_manifest

KIND: Final = "study"
_RUN_COLUMNS: Final = ("cell", "repetition", "state")
_COUNTED: Final = ("vehicles", "workers")
_NEEDED: Final = (
    "cell", "repetition", "vehicle_run", "phase", "vehicle", "camera", "sequence", "outcome", "frame_index", "t_due_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
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
    frames: pd.DataFrame  # The answered frames of the measured time, run by run in time order; may be empty.
    capacity: pd.DataFrame  # Empty where no search was made.
    cells: tuple[Cell, ...]
    axes: tuple[str, ...]  # Those that differ.
    missing: tuple[str, ...]

    def side(self, cell: Cell) -> Side:
        """The frames of a cell, to be compared."""
        frames = self.frames[self.frames["cell"] == cell.key] if len(self.frames) else self.frames
        of_cell = self.runs[self.runs["cell"] == cell.key]
        sources = set(of_cell["source_sha256"].dropna().astype(str)) if "source_sha256" in of_cell else set()
        return Side(
            cell.name, frames, frames["repetition"] if len(frames) else None, sources.pop() if len(sources) == 1 else ""
        )

    def pairs(self, axis: str) -> Iterator[tuple[Cell, Cell]]:
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


def load_study(folder: Path) -> StudyLog:
    """Read a study.

    Raises:
        LogError: it has no table of runs that can be read.
    """
    manifest = read_manifest(folder)
    runs = _runs(folder)
    known = manifest.get("axes")
    axes = tuple(axis for axis in known if axis in runs) if isinstance(known, Mapping) else ()
    differing = tuple(axis for axis in axes if len(set(runs[axis].astype(str))) > 1)
    missing: list[str] = []
    frames = _frames(folder, missing)
    capacity = _csv(folder / "capacity.csv") if (folder / "capacity.csv").exists() else pd.DataFrame()
    return StudyLog(folder, manifest, runs, frames, capacity, tuple(_cells(runs, differing)), differing, tuple(missing))


def _runs(folder: Path) -> pd.DataFrame:
    path = folder / "runs.csv"
    runs = _csv(path)
    lacking = [name for name in _RUN_COLUMNS if name not in runs]
    if lacking:
        raise LogError(f"{path}, row 1: it has no column {', '.join(lacking)}: run the study again")
    return runs


def _csv(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""])
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}: run the study first") from error
    except ValueError as error:  # What pandas' parsers raise.
        raise LogError(f"{path} is no table of a study: {' '.join(str(error).split())}") from error


def _frames(folder: Path, missing: list[str]) -> pd.DataFrame:
    """The answered frames of the measured time; empty, and told in `missing`, where they cannot be read."""
    path = folder / "frames.parquet"
    wanted = dict.fromkeys((*_NEEDED, *(name for name in COLUMNS if name.endswith("_ms"))))
    try:
        frames = pd.read_parquet(path, columns=[*wanted])
    except (OSError, ValueError) as error:
        missing.append(f"{path} cannot be read ({' '.join(str(error).split())[:200]}): frames are not compared.")
        return pd.DataFrame()
    # Vehicles of one run overlap in time: in the order they were due they are one series of what the system did.
    measured = answered(frames[frames["phase"] == "measured"])
    return measured.sort_values(["cell", "repetition"], kind="stable")


def _cells(runs: pd.DataFrame, axes: tuple[str, ...]) -> Iterator[Cell]:
    for _, first in runs.drop_duplicates("cell").sort_values([*axes, "cell"], kind="stable").iterrows():
        values = {axis: first[axis] for axis in axes}
        name = " · ".join(_named(axis, value) for axis, value in values.items())
        yield Cell(str(first["cell"]), name or str(first["cell"]), values)


def _named(axis: str, value: Any) -> str:
    """A value that says by itself what it is of: `jpeg`, `4 vehicles`, `batch 8`."""
    if isinstance(value, str):
        return value
    if axis in _COUNTED:
        return f"{value} {axis if value > 1 else axis.removesuffix('s')}"
    return f"{axis} {value}"
