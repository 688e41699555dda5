"""Reads the folders given to a report: one run, several runs, or a study with its runs, frames and cells."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.logs.audit import audit
from analysis.logs.problems import Problem, ProblemCollector
from analysis.logs.run_log import NOT_SENT, ORIGINS, RunLog, load_runs
from analysis.report.data.answered_frames import FrameGroup, timed_results
from analysis.streaming.run_accuracy import RunAccuracy, run_accuracy
from analysis.study.accuracy import STREAMING_COLUMNS
from shared.errors import SkylaneError
from shared.files import check_file, read_file
from shared.runlog.columns import ADDED
from shared.runlog.latency_log import COLUMNS, CSV_NAME, LogError, Outcome
from shared.runlog.run_manifest import read_manifest

KIND: Final = "study"
DEFAULT_VALUE: Final = "default"  # Shown for an axis whose value comes from the study or the scenario.
_RUN_COLUMNS: Final = ("cell", "repetition", "state")
_RUN_TEXT: Final = ("cell", "state", "reason", "validity", "validity_reason")
_RUN_NUMBERS: Final = (
    "repetition", "throughput_hz", "total_mean_ms", "total_p50_ms", "worker_cpu_percent", "worker_rss_mb", "vehicle_cpu_percent",
    "vehicle_rss_mb", "broker_cpu_percent", "gpu_percent", "gpu_memory_mb", "frames_read", *ORIGINS, "frames_sent",
    "mean_iou", "pixel_accuracy", "masks_compared", *STREAMING_COLUMNS, "ticks_scored", "ticks_without_output",
    "bytes_per_frame",
)  # fmt: skip
_NONE: Final = "none"  # The value of an axis for a run without a gate, local model, cascade or presenter.
_NAMES_OF_NOTHING: Final = {"present": "no presenter"}  # Names of this value that do not follow from that of the axis.
_MAX_REPETITION: Final = np.iinfo(np.int32).max
_COUNTED: Final = ("vehicles", "workers", "frames")
_NEEDED: Final = (
    "cell", "repetition", "vehicle_run", "phase", "vehicle", "camera", "sequence", "outcome", "frame_index", "t_due_ns",
    "bytes_up", "bytes_down", "worker", "t_inferred_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReportedCell:
    """A combination of axis values."""

    key: str  # Its value in the column "cell" of the study's tables.
    name: str
    settings: Mapping[
        str, Any
    ]  # Its values on the axes that vary within the study: what was served, if none was planned.
    plan: Mapping[str, Any]  # The planned values of these axes; None: the default.


@dataclass(frozen=True, slots=True)
class StudyLog:
    """The contents of a study's folder."""

    folder: Path
    manifest: Mapping[str, Any]
    runs: pd.DataFrame
    measured: pd.DataFrame  # All frames of the measured time; may be empty.
    results: pd.DataFrame  # The measured frames with a result of any origin, by run and time.
    capacity: pd.DataFrame  # Steps of the capacity search; empty if there was none.
    cells: tuple[ReportedCell, ...]
    axes: tuple[str, ...]  # The axes that vary.
    problems: tuple[Problem, ...]

    @property
    def cell_names(self) -> Mapping[str, str]:
        """The names of the cells by their keys."""
        return {cell.key: cell.name for cell in self.cells}

    @property
    def answered(self) -> pd.DataFrame:
        """The results of workers, which have the durations of all stages."""
        return self.results[self.results["outcome"] == Outcome.ANSWERED] if len(self.results) else self.results

    @property
    def recording_note(self) -> str:
        """Says that the runs of every cell played one recording, whose spread is not that of drives; empty otherwise."""
        played = self.runs.reindex(columns=["cell", "source_sha256"]).dropna().groupby("cell")["source_sha256"]
        if not len(played) or played.nunique().max() > 1 or played.size().max() == 1:
            return ""
        return (
            "All runs of a cell played one recording: spreads and intervals are those of repetitions, and say nothing of "
            "other drives (several drive_seeds do)."
        )

    def group(self, cell: ReportedCell) -> FrameGroup:
        """Returns the frames of a cell that got a result."""
        results = self.results[self.results["cell"] == cell.key] if len(self.results) else self.results
        shares = self.shares(cell)
        result_share = sum(value for origin, value in shares.items() if origin in ORIGINS)
        return FrameGroup(cell.name, results, results["repetition"] if len(results) else None, result_share)

    def shares(self, cell: ReportedCell) -> Mapping[str, float]:
        """Returns the shares of a cell's frames by the origin of their result, and of those sent; NaN if not known.

        The keys are the outcomes of `ORIGINS` and `frames_sent`.
        """
        columns = [*ORIGINS, "frames_sent"]
        counts = self.runs[self.runs["cell"] == cell.key].reindex(columns=[*columns, "frames_read"]).sum(min_count=1)
        is_known = bool(counts["frames_read"] > 0)
        # A table of an earlier version has no columns for results without sending, because there were none.
        found = {name: float(counts[name] / counts["frames_read"]) if is_known else np.nan for name in columns}
        return found | {name: 0.0 for name in NOT_SENT if is_known and np.isnan(found[name])}

    def pairs(self, axis: str) -> Iterator[tuple[ReportedCell, ReportedCell]]:
        """Yields pairs of cells that differ only in `axis`; cells with its first value are the baseline."""
        order = {value: index for index, value in enumerate(dict.fromkeys(cell.plan[axis] for cell in self.cells))}
        for a, b in combinations(sorted(self.cells, key=lambda cell: order[cell.plan[axis]]), 2):
            differing = [name for name in self.axes if a.plan[name] != b.plan[name]]
            if differing == [axis] and order[a.plan[axis]] == 0:
                yield a, b

    def consequences(self) -> Iterator[str]:
        """Yields a sentence for each setting that the plan does not vary but an axis implies, such as a model's engine."""
        planned = self.manifest.get("axes")
        for name in planned if isinstance(planned, Mapping) else ():
            if name in self.axes or name not in self.runs or not len(known := self.runs.dropna(subset=[name])):
                continue
            served = known.groupby("cell")[name].first().astype(str)
            cells = [cell for cell in self.cells if cell.key in served]
            for axis in self.axes if len(set(served)) > 1 else ():
                values = dict.fromkeys((str(cell.settings[axis]), served[cell.key]) for cell in cells)
                if len(values) == len({setting for setting, _ in values}):
                    listed = ", ".join(f"{value} for {setting}" for setting, value in values)
                    yield f"The {name} is no axis of this study, but follows from its {axis}: {listed}."
                    break


def is_study(folder: Path) -> bool:
    """Returns whether a folder contains a study."""
    try:
        return read_manifest(folder).get("kind") == KIND
    except LogError:
        return False


def run_folders(folder: Path) -> tuple[Path, ...]:
    """Returns the run folders of a study's vehicles; runs without a log are listed in the study's table of runs."""
    return tuple(sorted(log.parent for log in folder.glob(f"cells/*/*/*/{CSV_NAME}")))


def load_study(folder: Path) -> StudyLog:
    """Reads a study.

    Raises:
        LogError: The table of runs is missing or cannot be read.
    """
    manifest = read_manifest(folder)
    runs, run_problems = _runs(folder)
    manifest_axes = manifest.get("axes")
    values: Mapping[str, Any] = manifest_axes if isinstance(manifest_axes, Mapping) else {}
    served, planned = _served_and_planned(runs, values)
    axes = tuple(axis for axis in values if _has_several(axis, values[axis], planned))
    measured, frame_problems = _frames(folder)
    # The vehicles of a run overlap in time: sorted by due time, their frames form one time series of the system.
    results = timed_results(measured).sort_values(["cell", "repetition"], kind="stable") if len(measured) else measured
    capacity, capacity_problems = _capacity(folder)
    problems = (*run_problems, *frame_problems, *capacity_problems)
    cells = tuple(_cells(served, planned, axes, values))
    return StudyLog(folder, manifest, runs, measured, results, capacity, cells, axes, problems)


def _runs(folder: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """Reads the table of runs; rows without cell, repetition or state and cells with invalid numbers are skipped."""
    path = folder / "runs.csv"
    problems = ProblemCollector(path)
    runs = _csv(path, problems, dict.fromkeys((*_RUN_TEXT, *_RUN_NUMBERS), "str"))
    missing = [name for name in _RUN_COLUMNS if name not in runs]
    if missing:
        raise LogError(f"{path}, row 1: it has no column {', '.join(missing)}: run the study again")
    lines = runs.index.to_numpy(np.int64) + 2  # The header is line 1.
    for name in filter(runs.columns.__contains__, _RUN_NUMBERS):
        numbers = pd.to_numeric(runs[name], errors="coerce").astype(np.float64)
        numbers = numbers.where(np.isfinite(numbers))
        invalid = (numbers.isna() & runs[name].notna()).to_numpy()
        problems.add_rows(f"cells of {name}", lines[invalid], "is not a number: the cell is skipped", name)
        runs[name] = numbers
    is_valid = runs[[*_RUN_COLUMNS]].notna().all(axis=1) & runs["repetition"].between(0, _MAX_REPETITION)
    invalid = ~is_valid.to_numpy()
    what = f"has no valid {', '.join(_RUN_COLUMNS[:-1])} and {_RUN_COLUMNS[-1]}: the row is skipped"
    problems.add_rows("rows that identify no run", lines[invalid], what)
    return runs[~invalid].astype({"repetition": np.int64}), problems.collected()


def _csv(path: Path, problems: ProblemCollector, types: Mapping[str, Any]) -> pd.DataFrame:
    """Reads a table of the study; a truncated last line and lines with too many fields are skipped."""
    try:
        data = read_file(path)
        lines, _, truncated = data.rpartition(b"\n")
        if truncated:
            problems.add_rows(
                "truncated lines", np.array([data.count(b"\n") + 1]), "the line is truncated: it is skipped"
            )
        return pd.read_csv(
            io.BytesIO(lines),
            keep_default_na=False,
            na_values=[""],
            skip_blank_lines=False,
            dtype=types,
            engine="python",
            on_bad_lines=lambda fields: problems.add_file(
                f"the row that starts with {fields[0]!r} has {len(fields)} fields, which is too many: it is skipped"
            ),
        )
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}: run the study first") from error
    except ValueError as error:  # Raised by the parsers of pandas.
        raise LogError(f"{path} is not a table of a study: {' '.join(str(error).split())}") from error


def _frames(folder: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """Reads the frames of the measured time; returns none and a problem if they cannot be read."""
    path = folder / "frames.parquet"
    problems = ProblemCollector(path)
    durations = [name for name in COLUMNS if name.endswith("_ms")]
    try:
        check_file(path)
        frames = _read_columns(path, [*dict.fromkeys((*_NEEDED, *durations))])
        frames = frames.astype(dict.fromkeys(durations, np.float64))
    except (OSError, ValueError) as error:
        problems.add_file(f"cannot be read ({' '.join(str(error).split())[:200]}): the report compares no frames")
        return pd.DataFrame(), problems.collected()
    return frames[frames["phase"] == "measured"], ()


def _read_columns(path: Path, columns: list[str]) -> pd.DataFrame:
    try:
        return pd.read_parquet(path, columns=columns)
    except ValueError:  # A study of an earlier version lacks the columns of frames that were not sent.
        known = [name for name in columns if name not in ADDED]
        return pd.read_parquet(path, columns=known).reindex(columns=columns)


def _capacity(folder: Path) -> tuple[pd.DataFrame, tuple[Problem, ...]]:
    """Reads the steps of the capacity search; returns none if there was no search or it cannot be read."""
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
        problems.add_file("row 1 has no column cell: the capacity search is skipped")
        return pd.DataFrame(), problems.collected()
    return steps, problems.collected()


def _served_and_planned(runs: pd.DataFrame, axes: Mapping[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns one row per cell: its axis values as served, and as planned (missing for the default).

    The table of runs has the engine and the precision that a model's own turned out to be; a cell's key names the plan.
    """
    served = runs.groupby("cell", sort=False).first()
    keys = [str(key).split(".") for key in served.index]
    defaults = {axis: np.array([f"default-{axis}" in key for key in keys], bool) for axis in axes if axis in served}
    return served, served.assign(**{axis: served[axis].mask(is_default) for axis, is_default in defaults.items()})


def _has_several(axis: str, values: Any, planned: pd.DataFrame) -> bool:
    """Returns whether the plan varies an axis, and not only what was served on it; `values` are those of the manifest."""
    several = not isinstance(values, list) or len({str(value) for value in values}) > 1
    return axis in planned and several and len(set(planned[axis].astype(str))) > 1


def _cells(
    served: pd.DataFrame, planned: pd.DataFrame, axes: tuple[str, ...], axis_values: Mapping[str, Any]
) -> Iterator[ReportedCell]:
    """Yields each cell once, ordered by the position of its axis values in the study's file."""
    known = {axis: axis_values[axis] if isinstance(axis_values[axis], list) else [] for axis in axes}

    def positions(column: pd.Series) -> pd.Series:
        order = {str(value): index for index, value in enumerate(known[str(column.name)])}
        return pd.Series([order.get(str(_axis_value(cell)), len(order)) for cell in column], column.index)

    cells = planned.sort_values([*axes, "cell"], kind="stable")
    for key, row in (cells.sort_values([*axes], kind="stable", key=positions) if axes else cells).iterrows():
        plan = {axis: _axis_value(row[axis]) for axis in axes}
        settings = {axis: _axis_value(served.loc[key, axis]) for axis in axes}
        shown = {axis: plan[axis] if str(value) in map(str, known[axis]) else value for axis, value in settings.items()}
        name = " · ".join(_label(axis, value) for axis, value in shown.items())
        yield ReportedCell(str(key), name or str(key), settings, plan)


def _axis_value(cell: Any) -> Any:
    """Returns a value as in the study's file: pandas converts integers to floats if a value of the column is missing."""
    if pd.isna(cell):
        return None
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _label(axis: str, value: Any) -> str:
    """Returns a value with its axis where necessary: `jpeg`, `4 vehicles`, `batch 8`, `frames default`."""
    if isinstance(value, str):
        nothing = _NAMES_OF_NOTHING.get(axis, f"no {axis.replace('_', ' ')}")
        return nothing if value == _NONE and axis != "link" else value
    if value is None:
        return f"{axis} {DEFAULT_VALUE}"
    if axis in _COUNTED:
        return f"{value} {axis if value > 1 else axis.removesuffix('s')}"
    return f"{axis} {value}"


class ReportInputError(SkylaneError):
    """The given folders cannot be reported together."""


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Runs or a study, with the problems of their files."""

    runs: tuple[RunLog, ...] = ()
    study: StudyLog | None = None
    problems: tuple[Problem, ...] = ()
    local: RunLog | None = None  # A run with a worker on the vehicle, to compare offloaded runs with.
    streaming: tuple[RunAccuracy, ...] = ()  # Of each run, if the true labels were given.


def load_report_input(
    folders: Sequence[Path], local: RunLog | None = None, truths: Sequence[Path] = (), map_file: Path | None = None
) -> ReportInput:
    """Reads the folders of runs, or of one study.

    `truths` are the bags with the true labels: one, or one for each run; `map_file`: see `modelling.evaluation.class_map`.

    Raises:
        LogError: A log or the study's table of runs cannot be read.
        ReportInputError: A study was given together with other folders, a local run or true labels, or the number of bags
            with true labels does not fit.
        EvaluationError: The outputs of a run cannot be compared with the labels.
    """
    studies = [folder for folder in folders if is_study(folder)]
    if studies and len(folders) > 1:
        raise ReportInputError(
            f"{studies[0]} is a study, but {len(folders)} folders were given: report each study separately"
        )
    if studies and local:
        raise ReportInputError(
            f"{studies[0]} is a study, but --local compares runs: give the folder of one vehicle's run instead, under {studies[0]}/cells"
        )
    if studies and truths:
        raise ReportInputError(
            f"{studies[0]} is a study, but --truth compares runs with labels: set 'accuracy: true' in the file of the study, "
            "which then compares each run while it goes on"
        )
    if map_file is not None and not truths:
        raise ReportInputError("--map maps the classes of true labels: give the bag that has them with --truth")
    if len(truths) not in (0, 1, len(folders)):
        raise ReportInputError(
            f"{len(truths)} bags with --truth for {len(folders)} runs: give one bag for all, or one for each run in their order"
        )
    if studies:
        study = load_study(studies[0])
        return ReportInput(study=study, problems=study.problems)
    runs = load_runs(folders)
    problems = dict.fromkeys(problem for run in runs for problem in (*run.problems, *audit(run.folder)))
    bags = truths if len(truths) == len(runs) else [*truths] * len(runs)
    streaming = tuple(run_accuracy(run, bag, map_file) for run, bag in zip(runs, bags, strict=True)) if truths else ()
    return ReportInput(runs, problems=tuple(problems), local=local, streaming=streaming)
