"""Reads the rows of a latency log as exact integers; invalid rows and cells are skipped and listed as problems."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.problems import Problem, ProblemCollector
from analysis.logs.text_table import Bools, IntegerColumn, Ints, TextTable, read_table
from shared.runlog.columns import ADDED, DURATIONS, LATENCY, TEXTS, Kind, LogColumn
from shared.runlog.latency_log import CSV_NAME, LogError, Outcome
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest
from shared.stages import CLOUD_STAGES, EDGE_STAGES

INCOMPLETE = "incomplete"  # The state of a run that could not write all rows.
LINES, FRAMES, NUMBERS, COMPLETE, ORDER, MANIFEST = (
    "every line is a row of this run",
    "no frame has two rows",
    "number columns contain numbers",
    "answered rows are complete",
    "timestamps of a node never decrease",
    "the manifest belongs to the log",
)

_REQUIRED = tuple(name for name in LATENCY if name not in ADDED)
# Empty if the clock measurements with a worker are contradictory.
_CLOCK_COLUMNS = ("uplink_ms", "downlink_ms", "clock_offset_ms", "clock_error_ms")
_NEVER_EMPTY = ("vehicle", "session")
_NODES = (EDGE_STAGES, CLOUD_STAGES)
_SHOWN_MISSING = 8
_SHOWN_TEXT = 40  # Characters shown of an invalid cell.


@dataclass(frozen=True, slots=True)
class LogRows:
    """The rows of one run, one per frame.

    `numbers` has every column of `shared.runlog.columns.LATENCY` that is not text, with milliseconds converted to
    nanoseconds, and decimals to millionths. Columns that a log of an earlier version lacks are empty. `checked` and
    `problems` are keyed by the name of the check.
    """

    table: TextTable
    numbers: Mapping[str, IntegerColumn]
    manifest: Mapping[str, Any]
    checked: Mapping[str, int]
    problems: Mapping[str, tuple[Problem, ...]]

    @property
    def session(self) -> str:
        """The session of all rows."""
        return self.table.cell("session", 0) if len(self.table) else str(self.manifest.get("session", ""))

    @property
    def lost(self) -> int:
        """The number of rows that a full disk lost and the run counted; 0 if the other rows do not agree with it."""
        read, lost = self.manifest.get("frames_read"), self.manifest.get("rows_lost")
        if self.manifest.get("state") != INCOMPLETE or not isinstance(read, int) or not isinstance(lost, int):
            return 0
        sequences = self.numbers["sequence"].data
        agrees = read - lost == len(sequences) and (not len(sequences) or int(sequences.max()) < read)
        return lost if agrees and lost > 0 else 0


def read_log(folder: Path) -> LogRows:
    """Reads a run's log and manifest.

    If the log contains rows of several runs, those of the manifest's session are kept; without a manifest, those of the
    session with the most rows. A row with decreasing timestamps loses its times.

    Raises:
        LogError: The log is missing or lacks columns, which the message names.
    """
    path = folder / CSV_NAME
    collectors = {name: ProblemCollector(path) for name in (LINES, FRAMES, NUMBERS, COMPLETE, ORDER)}
    table = read_table(path, collectors[LINES])
    missing = [name for name in _REQUIRED if name not in table.names]
    if missing:
        raise LogError(_schema_error(path, missing, table.names))
    table = _identifiable_rows(table.with_columns(ADDED), collectors[LINES])
    manifest, manifest_problems = _read_manifest(folder, table)
    table = _first_row_per_frame(_rows_of_one_run(table, manifest, collectors[LINES]), collectors[FRAMES])
    numbers = {
        name: _numbers(table, column, collectors[NUMBERS])
        for name, column in LATENCY.items()
        if column.kind not in TEXTS
    }
    _report_incomplete_rows(table, numbers, collectors[COMPLETE])
    for stages in _NODES:
        _blank_decreasing(table, numbers, [f"t_{stage}_ns" for stage in stages], collectors[ORDER])
    problems = {name: collector.collected() for name, collector in collectors.items()} | {MANIFEST: manifest_problems}
    return LogRows(table, numbers, manifest, dict.fromkeys(collectors, len(table)) | {MANIFEST: 1}, problems)


def _schema_error(path: Path, missing: Sequence[str], names: Sequence[str]) -> str:
    shown = [f"{name}{_nearest(name, names)}" for name in missing[:_SHOWN_MISSING]]
    more = f" and {len(missing) - len(shown)} more" if len(missing) > len(shown) else ""
    what = "this is not a latency log" if len(missing) == len(_REQUIRED) else "the log has another version"
    return f"{path}, row 1: {what}: it has no column {', '.join(shown)}{more}"


def _nearest(name: str, names: Sequence[str]) -> str:
    near = [other for other in get_close_matches(name, names, n=1) if other not in LATENCY]
    return f" (but {near[0]})" if near else ""


def _identifiable_rows(table: TextTable, problems: ProblemCollector) -> TextTable:
    """Returns the rows with a vehicle, session, sequence number and outcome."""
    found = {
        **{name: (table.empty(name), "is empty") for name in _NEVER_EMPTY},
        "sequence": (~table.integers("sequence").known, "is not an integer"),
        "outcome": (~table.one_of("outcome", [*Outcome]), "is not an outcome"),
    }
    bad = np.zeros(len(table), np.bool_)
    for name, (where, what) in found.items():
        _report_texts(table, where & ~bad, name, what, problems, part="row")
        bad |= where
    return table.where(~bad)


def _report_texts(
    table: TextTable, bad: Bools, column: str, what: str, problems: ProblemCollector, *, part: str
) -> None:
    """Reports cells by their text; `part` is what is skipped because of them, the row or the cell."""
    rows = np.flatnonzero(bad)
    kind = f"rows whose {column}" if part == "row" else "cells whose text"
    problems.add_rows(
        f"{kind} {what}",
        table.lines[bad],
        lambda index: f"{_quoted(table.cell(column, int(rows[index])))} {what}: the {part} is skipped",
        column,
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…")


def _read_manifest(folder: Path, table: TextTable) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """Returns the run's manifest (empty if unusable) and its problems."""
    path = folder / MANIFEST_NAME
    problems = ProblemCollector(path)
    manifest: dict[str, Any] = {}
    if not path.exists():
        problems.add_file("is missing: source, model and settings of the run are unknown")
        return manifest, problems.collected()
    try:
        manifest = read_manifest(folder)
    except LogError as error:
        problems.add_file(str(error).removeprefix(f"{path} "))
        return manifest, problems.collected()
    session = manifest.get("session")
    is_ours = isinstance(session, str) and (not len(table) or table.one_of("session", [session]).any())
    if not is_ours:
        problems.add_file(f"belongs to session {session!r}, but no row of the log does: it is ignored")
        return {}, problems.collected()
    if manifest.get("state") == "running":
        problems.add_file(
            "says that the run is still running; if it was killed, close it with 'skylane report RUN --repair'"
        )
    return manifest, problems.collected()


def _rows_of_one_run(table: TextTable, manifest: Mapping[str, Any], problems: ProblemCollector) -> TextTable:
    """Returns the rows of one vehicle and session: the manifest's, or those with the most rows."""
    runs = pd.DataFrame({name: table.series(name) for name in ("vehicle", "session")})
    candidates = runs[runs["session"] == manifest["session"]] if "session" in manifest else runs
    if candidates.empty:
        return table
    vehicle, session = candidates.value_counts().index[0]
    foreign = ((runs["vehicle"] != vehicle) | (runs["session"] != session)).to_numpy()
    rows = np.flatnonzero(foreign)

    def describe(index: int) -> str:
        row = int(rows[index])
        other = f"vehicle {table.cell('vehicle', row)!r}, session {table.cell('session', row)!r}"
        return f"belongs to another run ({other}; this one: {vehicle!r}, {session!r}): the row is skipped"

    problems.add_rows("rows of other runs", table.lines[foreign], describe, "session")
    return table.where(~foreign)


def _first_row_per_frame(table: TextTable, problems: ProblemCollector) -> TextTable:
    sequences = pd.Series(table.integers("sequence").data)
    repeated = sequences.duplicated().to_numpy()
    first_lines = dict(zip(sequences[~repeated], table.lines[~repeated], strict=True)) if repeated.any() else {}
    repeated_sequences = sequences[repeated].to_numpy()

    def describe(index: int) -> str:
        sequence = int(repeated_sequences[index])
        return f"frame {sequence} already has row {first_lines[sequence]}: this row is skipped"

    problems.add_rows("repeated rows of a frame", table.lines[repeated], describe, "sequence")
    return table.where(~repeated)


def _numbers(table: TextTable, column: LogColumn, problems: ProblemCollector) -> IntegerColumn:
    name, kind = column.name, column.kind
    numbers = table.numbers(column)
    what = "is not a number of milliseconds" if kind in DURATIONS else "is not an integer"
    what = "is not a number with six decimals" if kind is Kind.DECIMAL else what
    _report_texts(table, numbers.invalid, name, what, problems, part="cell")
    return numbers


def _is_time(name: str) -> bool:
    return name.startswith("t_") or LATENCY[name].kind in DURATIONS


def _report_incomplete_rows(table: TextTable, numbers: Mapping[str, IntegerColumn], problems: ProblemCollector) -> None:
    """Reports empty time cells of rows answered by a worker, once per row; not every frame passes the added stages."""
    names = [name for name in numbers if _is_time(name) and name not in (*_CLOCK_COLUMNS, *ADDED)]
    answered = table.one_of("outcome", [Outcome.ANSWERED])
    empty = np.column_stack([answered & table.empty(name) for name in names])
    for column, name in enumerate(names):
        first = empty[:, column] & ~empty[:, :column].any(axis=1)
        others = empty[first].sum(axis=1) - 1
        problems.add_rows("incomplete answered rows", table.lines[first], partial(_describe_empty, others), name)


def _describe_empty(others: Ints, index: int) -> str:
    more = f", and {others[index]} more columns" if others[index] else ""
    return f"is empty{more}, but the frame was answered"


def _blank_decreasing(
    table: TextTable, numbers: Mapping[str, IntegerColumn], stamps: Sequence[str], problems: ProblemCollector
) -> None:
    """Removes all times from rows in which the timestamps of one node decrease; none of them can be trusted."""
    latest, seen = np.zeros(len(table), np.int64), np.zeros(len(table), np.bool_)
    decreasing = np.zeros(len(table), np.bool_)
    for name in stamps:
        column = numbers[name]
        back_ns = np.where(column.known & seen & ~decreasing, latest - column.data, 0)
        rows = np.flatnonzero(back_ns > 0)
        problems.add_rows(
            "rows with decreasing timestamps", table.lines[rows], partial(_describe_decreasing, back_ns[rows]), name
        )
        decreasing[rows] = True
        latest, seen = np.where(column.known, column.data, latest), seen | column.known
    if decreasing.any():
        for name in filter(_is_time, numbers):
            numbers[name].known[decreasing] = False


def _describe_decreasing(back_ns: Ints, index: int) -> str:
    return f"is {back_ns[index]} ns before the previous timestamp: the row's times are skipped"
