"""The rows of a latency log as exact integers; a row or a cell that cannot be true is left out, and told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.logs.problems import Problem, Problems
from bench.logs.text_table import Bools, Ints, Numbers, TextTable, read_table
from shared.runlog.latency_log import COLUMNS, CSV_NAME, TEXT_COLUMNS, LogError, Outcome
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest
from shared.stages import CLOUD_STAGES, EDGE_STAGES

LINES, FRAMES, NUMBERS, COMPLETE, ORDER, MANIFEST = (
    "every line is a row of this run",
    "no frame has two rows",
    "numbers are where numbers belong",
    "answered rows are complete",
    "the stamps of a node never run backwards",
    "the manifest belongs to the log",
)

_SIGNED_MS = ("uplink_ms", "downlink_ms", "clock_offset_ms")  # An offset has a sign, and gives one to what it corrects.
_BY_THE_CLOCK = (*_SIGNED_MS, "clock_error_ms")  # Empty where two exchanges with a worker contradict each other.
_NEVER_EMPTY = ("vehicle", "session")
_NODES = (EDGE_STAGES, CLOUD_STAGES)
_SHOWN_MISSING = 8
_SHOWN_TEXT = 40  # Characters of a broken cell.


@dataclass(frozen=True, slots=True)
class LogRows:
    """The rows of one run, each of another frame.

    `numbers`: every column of `shared.runlog.latency_log` that is no text, milliseconds as nanoseconds; what is not `known`
    was not measured, or could not be true. `looked_at` and `problems`: by what was held against the files.
    """

    table: TextTable
    numbers: Mapping[str, Numbers]
    manifest: Mapping[str, Any]
    looked_at: Mapping[str, int]
    problems: Mapping[str, tuple[Problem, ...]]

    @property
    def session(self) -> str:
        """The session that all rows are of."""
        return self.table.cell("session", 0) if len(self.table) else str(self.manifest.get("session", ""))


def read_log(folder: Path) -> LogRows:
    """Read a run's log and manifest.

    Where rows of several runs are mixed, those of the manifest's session are kept; where none tells, those of the
    session with most rows. A row whose clock ran backwards loses its times.

    Raises:
        LogError: there is no log, or it is one of another schema: the message names the columns that are missing.
    """
    path = folder / CSV_NAME
    told = {name: Problems(path) for name in (LINES, FRAMES, NUMBERS, COMPLETE, ORDER)}
    table = read_table(path, told[LINES])
    missing = [name for name in COLUMNS if name not in table.names]
    if missing:
        raise LogError(_other_schema(path, missing, table.names))
    table = _identified(table, told[LINES])
    manifest, of_manifest = _manifest(folder, table)
    table = _once(_of_one_run(table, manifest, told[LINES]), told[FRAMES])
    numbers = {name: _numbers(table, name, told[NUMBERS]) for name in COLUMNS if name not in TEXT_COLUMNS}
    _tell_holes(table, numbers, told[COMPLETE])
    for stages in _NODES:
        _blank_backward(table, numbers, [f"t_{stage}_ns" for stage in stages], told[ORDER])
    problems = {name: found.all() for name, found in told.items()} | {MANIFEST: of_manifest}
    return LogRows(table, numbers, manifest, dict.fromkeys(told, len(table)) | {MANIFEST: 1}, problems)


def _other_schema(path: Path, missing: Sequence[str], names: Sequence[str]) -> str:
    shown = [f"{name}{_nearest(name, names)}" for name in missing[:_SHOWN_MISSING]]
    more = f" and {len(missing) - len(shown)} more" if len(missing) > len(shown) else ""
    what = "this is no latency log" if len(missing) == len(COLUMNS) else "it is of another version"
    return f"{path}, row 1: {what}: it has no column {', '.join(shown)}{more}"


def _nearest(name: str, names: Sequence[str]) -> str:
    near = [other for other in get_close_matches(name, names, n=1) if other not in COLUMNS]
    return f" (but {near[0]})" if near else ""


def _identified(table: TextTable, problems: Problems) -> TextTable:
    """The rows that say which frame they are of and what became of it."""
    bad = np.zeros(len(table), np.bool_)
    for name in _NEVER_EMPTY:
        bad |= _left_out(table, table.empty(name) & ~bad, name, "is empty", problems)
    bad |= _left_out(table, ~table.integers("sequence").known & ~bad, "sequence", "is no whole number", problems)
    bad |= _left_out(table, ~table.one_of("outcome", [*Outcome]) & ~bad, "outcome", "is no outcome", problems)
    return table.where(~bad)


def _left_out(table: TextTable, bad: Bools, column: str, what: str, problems: Problems) -> Bools:
    places = np.flatnonzero(bad)
    problems.rows(
        f"rows whose {column} {what}",
        table.lines[bad],
        lambda place: f"{_quoted(table.cell(column, int(places[place])))} {what}: the row is left out",
        column,
    )
    return bad


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…")


def _manifest(folder: Path, table: TextTable) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    """The run's manifest, and what is wrong with it."""
    path = folder / MANIFEST_NAME
    problems = Problems(path)
    manifest: dict[str, Any] = {}
    if not path.exists():
        problems.whole("is not there: what was played to whom by what is not known")
        return manifest, problems.all()
    try:
        manifest = read_manifest(folder)
    except LogError as error:
        problems.whole(str(error).removeprefix(f"{path} "))
        return manifest, problems.all()
    session = manifest.get("session")
    is_ours = isinstance(session, str) and (not len(table) or table.one_of("session", [session]).any())
    if not is_ours:
        problems.whole(f"is of session {session!r}, which no row of the log is of: it is left out")
        return {}, problems.all()
    if manifest.get("state") == "running":
        problems.whole("says that the run still goes on; if it was killed, close it with 'skylane report RUN --repair'")
    return manifest, problems.all()


def _of_one_run(table: TextTable, manifest: Mapping[str, Any], problems: Problems) -> TextTable:
    """The rows of one vehicle and session: the manifest's, or else those that are most."""
    runs = pd.DataFrame({name: table.series(name) for name in ("vehicle", "session")})
    known = runs[runs["session"] == manifest["session"]] if "session" in manifest else runs
    if known.empty:
        return table
    vehicle, session = known.value_counts().index[0]
    foreign = ((runs["vehicle"] != vehicle) | (runs["session"] != session)).to_numpy()
    places = np.flatnonzero(foreign)

    def say(place: int) -> str:
        row = int(places[place])
        other = f"vehicle {table.cell('vehicle', row)!r}, session {table.cell('session', row)!r}"
        return f"is of another run ({other}; this one: {vehicle!r}, {session!r}): the row is left out"

    problems.rows("rows of other runs", table.lines[foreign], say, "session")
    return table.where(~foreign)


def _once(table: TextTable, problems: Problems) -> TextTable:
    """The first row of every frame."""
    sequences = pd.Series(table.integers("sequence").whole)
    again = sequences.duplicated().to_numpy()
    first = dict(zip(sequences[~again], table.lines[~again], strict=True)) if again.any() else {}
    of_again = sequences[again].to_numpy()

    def say(place: int) -> str:
        sequence = int(of_again[place])
        return f"frame {sequence} has its row already, in row {first[sequence]}: this one is left out"

    problems.rows("rows of frames that have one already", table.lines[again], say, "sequence")
    return table.where(~again)


def _numbers(table: TextTable, name: str, problems: Problems) -> Numbers:
    """A column's numbers; what is none is told."""
    if name.endswith("_ms"):
        numbers, what = table.millionths(name, signed=name in _SIGNED_MS), "is no number of milliseconds"
    else:
        numbers, what = table.integers(name, signed=name.endswith("_ns")), "is no whole number"
    places = np.flatnonzero(numbers.wrong)
    problems.rows(
        f"cells whose text {what}",
        table.lines[numbers.wrong],
        lambda place: f"{_quoted(table.cell(name, int(places[place])))} {what}: the cell is left out",
        name,
    )
    return numbers


def _is_time(name: str) -> bool:
    return name.startswith("t_") or name.endswith("_ms")


def _tell_holes(table: TextTable, numbers: Mapping[str, Numbers], problems: Problems) -> None:
    """Tell what is empty in answered rows, once a row."""
    names = [name for name in numbers if _is_time(name) and name not in _BY_THE_CLOCK]
    answered = table.one_of("outcome", [Outcome.ANSWERED])
    empty = np.column_stack([answered & table.empty(name) for name in names])
    for place, name in enumerate(names):
        first = empty[:, place] & ~empty[:, :place].any(axis=1)
        others = empty[first].sum(axis=1) - 1
        problems.rows("answered rows with holes", table.lines[first], partial(_hole, others), name)


def _hole(others: Ints, place: int) -> str:
    more = f", and {others[place]} more columns" if others[place] else ""
    return f"is empty{more}, though the frame was answered"


def _blank_backward(table: TextTable, numbers: dict[str, Numbers], stamps: Sequence[str], problems: Problems) -> None:
    """Take all times from the rows in which one node's stamps run backwards: none of them can be trusted."""
    latest, seen = np.zeros(len(table), np.int64), np.zeros(len(table), np.bool_)
    backward = np.zeros(len(table), np.bool_)
    for name in stamps:
        column = numbers[name]
        back_ns = np.where(column.known & seen & ~backward, latest - column.whole, 0)
        here = np.flatnonzero(back_ns > 0)
        _tell_backward(table.lines[here], back_ns[here], name, problems)
        backward[here] = True
        latest, seen = np.where(column.known, column.whole, latest), seen | column.known
    if backward.any():
        for name in filter(_is_time, numbers):
            numbers[name].known[backward] = False


def _tell_backward(lines: Ints, back_ns: Ints, name: str, problems: Problems) -> None:
    problems.rows(
        "rows whose stamps run backwards",
        lines,
        lambda place: f"is {back_ns[place]} ns before the stamp it follows: the row's times are left out",
        name,
    )
