"""The log of outputs: one CSV row per tick, with its output and when that was ready, or why there is no output."""

import csv
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Self

from shared.errors import unwritable_message
from shared.files import open_file
from shared.runlog.columns import PRESENTED, TEXTS, LogColumn, cells_of
from shared.runlog.latency_log import LogError, append_whole, created, csv_line, log_full_disk

PRESENTED_NAME = "presented.csv"
HOLD = "hold"  # The presenter whose outputs are the results themselves: each was ready when its result arrived.
# The reason of a tick that had no row yet when the vehicle node died, or whose row a full disk lost.
ABORTED = "aborted"


class OutputOrigin(StrEnum):
    """The kind of results that an output was made of."""

    REMOTE = "remote"  # A result as it came back.
    WARPED = "warped"  # A result, moved to now.
    LOCAL = "local"  # The result of the vehicle's own model.
    FUSED = "fused"  # A moved result and the local model's.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class PresentedRow:
    """Everything known about a tick: a frame at the time at which it was due, and the output for it.

    A repaired run does not know all numbers of a tick; unknown ones are None, as are those of a tick without an output.
    """

    camera: str
    session: str
    tick: int  # The sequence number of the frame, as in the latency log.
    origin: OutputOrigin
    reason: str = ""  # The reason for a missing output; empty otherwise.
    frame_index: int | None = None
    frame_stamp_ns: int | None = None
    due_ns: int | None = None
    # The time at which the output was ready, or at which it was certain that none comes.
    presented_ns: int | None = None
    source_sequence: int | None = None  # The earlier frame that the result was computed for.
    age_ns: int | None = None  # The due time of the tick minus that of the source; 0 for a local result of this tick.
    processing_ns: int | None = None  # The time that the presenter took.
    flow: str = ""  # The size of the images of the optical flow, as the presenter names it; empty without one.


COLUMNS = tuple(PRESENTED)
_cells_of_row = cells_of(PresentedRow, PRESENTED.values())
_MAX_LINE_BYTES = 1 << 14
_CLOSED = -1  # A thread that outlives the log must not write to a reused file descriptor.


def presented_fields(row: PresentedRow) -> dict[str, str]:
    """Returns a row as CSV text by column; what is unknown is empty, never zero."""
    return dict.fromkeys(COLUMNS, "") | _cells_of_row(row)


@dataclass(slots=True)
class PresentedCounts:
    """Numbers of ticks by origin, by reason without an output, and by the size of the flow."""

    ticks: Counter[OutputOrigin] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # Without the details that follow a colon.
    flows: Counter[str] = field(default_factory=Counter)

    def add(self, row: PresentedRow) -> None:
        """Counts a tick."""
        self.ticks[row.origin] += 1
        if row.reason:
            self.reasons[row.reason.partition(":")[0]] += 1
        if row.flow:
            self.flows[row.flow] += 1

    def record(self) -> dict[str, dict[str, int]]:
        """Returns the counts for the manifest, by the names of its keys."""
        ticks = {origin.value: self.ticks[origin] for origin in OutputOrigin}
        return {
            "ticks": ticks,
            "reasons": dict(sorted(self.reasons.items())),
            "flows": dict(sorted(self.flows.items())),
        }


class PresentedLog:
    """Writes `presented.csv`, with one system call per row, and counts the ticks. Any thread may call it.

    A full disk does not stop the run: `rows_lost` counts the rows that could not be written, `fault` holds the error.
    `counts` includes those rows.
    """

    def __init__(self, folder: Path) -> None:
        """Starts the log in a run's folder, which exists.

        Raises:
            LogError: the file exists, or it cannot be written.
        """
        self.rows_lost = 0
        self.fault: OSError | None = None
        self.counts = PresentedCounts()
        self._lock = threading.Lock()
        self._path = path = folder / PRESENTED_NAME
        try:
            with ExitStack() as undo:  # Removes the file if its first line cannot be written.
                self._file = created(path, undo)
                append_whole(self._file, (",".join(COLUMNS) + "\n").encode())
                undo.pop_all()
        except FileExistsError as error:
            raise LogError(f"{path} exists already: choose another --out") from error
        except OSError as error:
            raise LogError(unwritable_message(path, error, "--out")) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            os.close(self._file)
            self._file = _CLOSED

    def write(self, row: PresentedRow) -> None:
        """Writes the row of a tick."""
        line = csv_line(presented_fields(row), COLUMNS)
        with self._lock:
            self.counts.add(row)
            try:
                append_whole(self._file, line.encode(errors="backslashreplace"))
            except OSError as error:
                if self.fault is None:
                    log_full_disk(self._path, error)
                self.fault = error
                self.rows_lost += 1


def read_presented(folder: Path) -> Iterator[PresentedRow]:
    """Yields the rows of a run in the order in which they were written; a row that a kill cut short is left out.

    Raises:
        LogError: there is no such log, or a line is not a row of one.
    """
    path = folder / PRESENTED_NAME
    try:
        with open_file(path) as file:
            names = _cells(path, file, 1) or []
            if missing := [name for name in COLUMNS if name not in names]:
                raise LogError(f"{path} is no log of outputs, or of another version: it has no {', '.join(missing)}")
            for line in count(2):
                cells = _cells(path, file, line)
                if cells is None:
                    return
                try:
                    yield _row(dict(zip(names, cells, strict=True)))
                except ValueError as error:
                    raise LogError(f"{path}, line {line}, is not a row of a log of outputs: {error}") from error
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error


def _cells(path: Path, file: BinaryIO, line: int) -> list[str] | None:
    """Returns the cells of the next line; None at the end."""
    data = file.readline(_MAX_LINE_BYTES)
    if not data.endswith(b"\n"):
        if len(data) == _MAX_LINE_BYTES:
            raise LogError(f"{path}, line {line}, has more than {_MAX_LINE_BYTES} bytes, more than any row")
        return None
    try:
        return next(csv.reader([data.decode(errors="replace")], strict=True), [])
    except csv.Error as error:
        raise LogError(f"{path}, line {line}, cannot be read: {error}") from error


def _row(fields: dict[str, str]) -> PresentedRow:
    """Parses a row.

    Raises:
        ValueError: a cell has no valid value.
    """
    origin = fields["origin"]
    if origin not in frozenset(OutputOrigin):
        raise ValueError(f"{origin!r} is no origin of an output")
    tick = PRESENTED["tick"].number(fields["tick"])
    if tick is None or tick < 0:
        raise ValueError(f"{fields['tick']!r} is no number of a tick")
    numbers = {
        column.attribute: _number(column, fields[name])
        for name, column in PRESENTED.items()
        if column.kind not in TEXTS
    }
    if (numbers["processing_ns"] or 0) < 0:
        raise ValueError(f"its processing_ms is {fields['processing_ms']!r}")
    texts: dict[str, Any] = {name: fields[name] for name, column in PRESENTED.items() if column.kind in TEXTS}
    return PresentedRow(**texts | numbers | {"origin": OutputOrigin(origin)})


def _number(column: LogColumn, text: str) -> int | None:
    value = column.number(text)
    if text and value is None:
        raise ValueError(f"its {column.name} is {text!r}")
    return value
