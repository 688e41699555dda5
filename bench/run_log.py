"""A run as it lies in its folder, read with pandas: what can be read is there, what cannot is told and never filled in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.problems import Problem, Problems
from bench.resource_log import load_resources
from bench.text_table import Bools, Ints, Numbers, TextTable, read_table
from shared.latency_log import COLUMNS, CSV_NAME, LogError, Outcome
from shared.run_manifest import MANIFEST_NAME, read_manifest
from shared.stages import CLOUD_STAGES, EDGE_STAGES

__all__ = ["Problem", "RunLog", "load_run", "load_runs"]

_TEXT = {"vehicle", "camera", "session", "outcome", "reason", "model", "worker", "worker_session"}
_SIGNED_MS = {"uplink_ms", "downlink_ms", "clock_offset_ms"}  # An offset has a sign, and what it corrects may get one.
_NEVER_EMPTY = ("vehicle", "camera", "session")
_NODES = (EDGE_STAGES, CLOUD_STAGES)
_SHOWN_MISSING = 8
_SHOWN_TEXT = 40  # Characters of a broken cell.


@dataclass(frozen=True, slots=True)
class RunLog:
    """What a run's folder holds.

    `frames` has one row a frame, in the order in which they ended, and all columns of `shared.latency_log`: text as
    `str`, empty where nothing was to say; whole numbers as `Int64` with `<NA>`, so that stamps stay exact; milliseconds
    as `float64` with NaN. Columns of a later version are kept as text. `resources` likewise has those of
    `shared.resources`, its measured columns as `float64`.
    """

    folder: Path
    name: str
    frames: pd.DataFrame
    manifest: Mapping[str, Any]  # Empty where there is none, or none of this run.
    resources: pd.DataFrame
    problems: tuple[Problem, ...]


def load_run(folder: Path) -> RunLog:
    """Read a run. What is broken is left out, a row or a cell of it, and named in `problems`.

    A row whose clock ran backwards keeps its outcome and loses its times. Where rows of several runs are mixed, those
    of the manifest's session are kept; where none tells, those of the session with most rows.

    Raises:
        LogError: there is no log, or it is one of another schema: the message names the columns that are missing.
    """
    path = folder / CSV_NAME
    problems = Problems(path)
    table = read_table(path, problems)
    missing = [name for name in COLUMNS if name not in table.names]
    if missing:
        raise LogError(_other_schema(path, missing, table.names))
    table = _identified(table, problems)
    manifest, told = _manifest(folder, table)
    table = _of_one_run(table, manifest, problems)
    frames = _frames(_once(table, problems), problems)
    resources, told_of_resources = load_resources(folder)
    return RunLog(
        folder, folder.resolve().name, frames, manifest, resources, (*problems.all(), *told, *told_of_resources)
    )


def load_runs(folders: Sequence[Path]) -> tuple[RunLog, ...]:
    """Read several runs; those whose folders are called alike are named by as much of their paths as tells them apart.

    Raises:
        LogError: as for `load_run`.
    """
    names = _names([folder.resolve() for folder in folders])
    return tuple(replace(load_run(folder), name=name) for folder, name in zip(folders, names, strict=True))


def _names(folders: Sequence[Path]) -> list[str]:
    for depth in range(1, max((len(folder.parts) for folder in folders), default=0) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.name} ({number})" for number, folder in enumerate(folders, start=1)]


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
    if len(table) and not (isinstance(session, str) and table.one_of("session", [session]).any()):
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


def _frames(table: TextTable, problems: Problems) -> pd.DataFrame:
    numbers = {name: _read(table, name, problems) for name in COLUMNS if name not in _TEXT}
    answered = table.one_of("outcome", [Outcome.ANSWERED])
    for name in numbers:
        if _is_time(name):
            _tell_hole(table, name, answered & table.empty(name), problems)
    for stages in _NODES:
        _blank_backward(table, numbers, [f"t_{stage}_ns" for stage in stages], problems)
    columns = {name: _series(name, numbers[name]) if name in numbers else table.series(name) for name in table.names}
    return pd.DataFrame(columns)


def _read(table: TextTable, name: str, problems: Problems) -> Numbers:
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
    """Whether a column holds what is measured of every answered frame."""
    return name.startswith("t_") or name.endswith("_ms")


def _tell_hole(table: TextTable, name: str, holes: Bools, problems: Problems) -> None:
    lines = table.lines[holes]
    problems.rows("cells that are empty in answered rows", lines, lambda _: "is empty, though answered", name)


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


def _series(name: str, numbers: Numbers) -> pd.Series:
    """A column for pandas: milliseconds as float64, all else as Int64."""
    if name.endswith("_ms"):
        return pd.Series(np.where(numbers.known, numbers.whole / 1e6, np.nan))
    return pd.Series(pd.arrays.IntegerArray(numbers.whole, ~numbers.known))
