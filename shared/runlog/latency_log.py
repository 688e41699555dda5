"""The latency log of a run: one CSV row per frame, and a journal from which rows lost to a kill are restored."""

import csv
import errno
import fcntl
import io
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from shared.clock import Offset
from shared.errors import SkylaneError, unwritable_message
from shared.files import open_file
from shared.logs import get_logger
from shared.runlog.columns import ADDED, LATENCY, cells_of, milliseconds
from shared.runlog.lost_rows import LostRows
from shared.stages import Stage, durations_ns

CSV_NAME = "latency.csv"
JOURNAL_NAME = "latency.journal"


class LogError(SkylaneError):
    """The files of a run cannot be written or read."""


class Outcome(StrEnum):
    """The outcome of a frame; every frame read has exactly one."""

    ANSWERED = "answered"  # A worker's result arrived in time.
    REUSED = "reused"  # The result is that of a similar earlier frame.
    ANSWERED_LOCALLY = "answered_locally"  # The result is that of the vehicle's own model.
    DROPPED = "dropped"  # Discarded by the vehicle before it was sent.
    EXPIRED = "expired"  # Its result came after its deadline, or the worker reported it as late.
    OVERLOADED = "overloaded"
    REJECTED = "rejected"
    FAILED = "failed"
    LOST = "lost"  # No reply by the deadline and its grace time.
    ABORTED = "aborted"  # The frame was in flight when the vehicle node died.

    @property
    def has_result(self) -> bool:
        """True if the frame got a result in time, whatever its origin."""
        return self in WITH_RESULT


WITH_RESULT = (Outcome.ANSWERED, Outcome.REUSED, Outcome.ANSWERED_LOCALLY)
_OUTCOMES = frozenset(Outcome)


@dataclass(slots=True)
class LatencyRow:
    """Everything known about a frame. Times are in nanoseconds, each by the clock of its node.

    The vehicle fills it while the frame is on its way; nothing changes it after the frame has ended.
    """

    vehicle: str
    camera: str
    session: str
    sequence: int
    outcome: Outcome
    reason: str = ""
    frame_index: int = 0
    frame_stamp_ns: int = 0
    source_ns: int = 0
    read_ns: int = 0
    attempts: int = 0
    retry_wait_ns: int = 0
    model: str = ""  # The requested model; the columns after it describe the model that replied.
    model_version: str = ""
    engine: str = ""
    worker: str = ""
    worker_session: str = ""
    batch_size: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    edge_times: dict[Stage, int] = field(default_factory=dict)
    cloud_times: Mapping[Stage, int] = field(default_factory=dict)
    clock: Offset | None = None
    gate_distance: float | None = None  # Distance to the compared frame; None without a comparison.
    reused_sequence: int | None = None  # The frame whose result this frame got.
    dispatch: str = ""  # The choice of its worker, "load" or "group"; empty if it was not sent through a broker.
    local_confidence: float | None = None  # The local model's, 0 to 1; also of frames that were then sent.
    camera_id: str = ""  # The camera in the frame's id, see FrameId; not in the table.

    @property
    def has_result_of_vehicle(self) -> bool:
        """True if the result, in time or late, was computed or reused at the vehicle, without sending the frame."""
        was_sent = Stage.SENT in self.edge_times
        return not was_sent and (self.outcome.has_result or self.outcome is Outcome.EXPIRED)


COLUMNS = tuple(LATENCY)
_REQUIRED = tuple(name for name in COLUMNS if name not in ADDED)
_ONE_WAY = ("uplink", "downlink")
_cells_of_row = cells_of(LatencyRow, LATENCY.values())


def csv_fields(row: LatencyRow) -> dict[str, str]:
    """Returns a row as CSV text by column. Missing measurements are empty, never zero.

    - `total_ms` = mask_decoded - due, the sum of the edge's durations; `returned_ms` among them is the time away. For a
      frame whose result is reused or the local model's, it is the time from due to that result.
    - `cloud_ms` = replied - received, the sum of the worker's durations.
    - `crossing_ms` = `returned_ms` - `cloud_ms`, which needs no common clock.
    - `uplink_ms` and `downlink_ms` split `crossing_ms` by `clock_offset_ms` (the worker's clock minus the edge's). Each
      is correct to within `clock_error_ms`, and resolved (1, else 0) if it is larger than that.
    - For a frame that was sent twice, `sent` is the time of the attempt that was answered. `sent_ms` then includes
      `retry_wait_ms`, the time from the first attempt to that one; all later columns describe that attempt.
    """
    fields = _cells_of_row(row)
    for times in (row.edge_times, row.cloud_times):
        for stage, at_ns in times.items():
            fields[f"t_{stage}_ns"] = str(at_ns)
        for stage, duration_ns in durations_ns(times).items():
            fields[f"{stage}_ms"] = milliseconds(duration_ns)
    sums = _sums_ns(row)
    for name, value_ns in sums.items():
        fields[f"{name}_ms"] = milliseconds(value_ns)
    if row.clock and "crossing" in sums:
        for name in _ONE_WAY:
            fields[f"{name}_resolved"] = "1" if sums[name] > sums["clock_error"] else "0"
    return fields


def _sums_ns(row: LatencyRow) -> dict[str, int]:
    edge, cloud = row.edge_times, row.cloud_times
    sums = {}
    if Stage.DUE in edge and (Stage.MASK_DECODED in edge or row.has_result_of_vehicle):
        sums["total"] = edge.get(Stage.MASK_DECODED, max(edge.values())) - edge[Stage.DUE]
    if Stage.RECEIVED in cloud and Stage.REPLIED in cloud:
        sums["cloud"] = cloud[Stage.REPLIED] - cloud[Stage.RECEIVED]
        if Stage.SENT in edge and Stage.RETURNED in edge:
            sums["crossing"] = edge[Stage.RETURNED] - edge[Stage.SENT] - sums["cloud"]
            if row.clock:
                sums["uplink"] = cloud[Stage.RECEIVED] - edge[Stage.SENT] - row.clock.offset_ns
                sums["downlink"] = edge[Stage.RETURNED] - cloud[Stage.REPLIED] + row.clock.offset_ns
                sums["clock_offset"] = row.clock.offset_ns
                sums["clock_error"] = row.clock.error_ns
    return sums


_LOG = get_logger("runlog")
_CLOSED = -1  # A thread that outlives the log must not write to a reused file descriptor.


class LogWriter:
    """Writes the log of a run, with one system call per row, so that a kill leaves only whole rows.

    A full disk does not stop the run: `rows_lost` counts the rows that could not be written, `fault` holds the error,
    and `shared.runlog.lost_rows` records their frames.
    """

    def __init__(self, folder: Path) -> None:
        """Starts a log in `folder`.

        Raises:
            LogError: the folder cannot be created or written, the disk is full, or there is a log already.
        """
        self.rows_lost = 0
        self.fault: OSError | None = None
        self._folder = folder
        self._lost: LostRows | None = None  # Created last, as its space is less important than the log's.
        is_new = not folder.exists()
        try:
            with ExitStack() as undo:  # Removes the files if the log cannot be started.
                folder.mkdir(parents=True, exist_ok=True)
                if is_new:
                    undo.callback(_remove_empty, folder)
                self._csv = created(folder / CSV_NAME, undo)
                self._journal = created(folder / JOURNAL_NAME, undo)
                with suppress(OSError):  # Without locks, `repair` cannot tell that a run is still going on.
                    fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self._append(self._csv, ",".join(COLUMNS) + "\n"):
                    assert self.fault is not None
                    raise self.fault
                undo.pop_all()
        except FileExistsError as error:
            is_file = folder.exists() and not folder.is_dir()
            problem = "is a file, not a folder" if is_file else "already holds a run"
            raise LogError(f"{folder} {problem}: choose another --out") from error
        except OSError as error:
            raise LogError(unwritable_message(folder, error, "--out")) from error
        self._lost = LostRows(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._csv)
        os.close(self._journal)
        self._csv = self._journal = _CLOSED
        if self._lost is not None:
            self._lost.close()

    def open(self, row: LatencyRow) -> None:
        """Writes a frame to the journal before it is sent; `row.outcome` is its outcome if this process dies."""
        self._append(self._journal, csv_line(csv_fields(row)))

    def close(self, row: LatencyRow) -> None:
        """Writes the row of a frame that has ended."""
        if not self._append(self._csv, csv_line(csv_fields(row))):
            self.rows_lost += 1
            if self._lost is not None:
                self._lost.note(row.sequence, row.outcome)

    def _append(self, file: int, text: str) -> bool:
        try:
            append_whole(file, text.encode(errors="backslashreplace"))  # Folder names need not be UTF-8.
        except OSError as error:
            if self.fault is None and self._lost is not None:
                log_full_disk(self._folder / CSV_NAME, error)
            self.fault = error
            return False
        return True


def append_whole(file: int, data: bytes) -> None:
    """Appends data with one system call, so that a kill or a full disk leaves only whole rows.

    Raises:
        OSError: the data could not be written; a part that was written is removed.
    """
    written = os.write(file, data)
    if written < len(data):
        os.ftruncate(file, os.lseek(file, 0, os.SEEK_END) - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def log_full_disk(path: Path, error: OSError) -> None:
    """Logs that a file of a run cannot be written any more, when that begins; the run goes on."""
    _LOG.error("file of the run cannot be written", file=str(path), reason=error.strerror or str(error))


def created(path: Path, undo: ExitStack) -> int:
    """Creates a file that must not exist, for appending; `undo` closes and removes it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    undo.callback(path.unlink)
    undo.callback(os.close, file)
    return file


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def csv_line(fields: Mapping[str, str], columns: Sequence[str] = COLUMNS) -> str:
    """Returns a row as one line of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields.get(column, "") for column in columns)
    return text.getvalue()


def read_rows(folder: Path, problems: list[str] | None = None) -> Iterator[dict[str, str]]:
    """Yields the rows of a run as text by column; missing measurements are empty, and so are those that the log lacks.

    `problems` collects the lines that are not rows, which are then skipped.

    Raises:
        LogError: there is no log, it is not a latency log, or, without `problems`, a line is not a row.
    """
    yield from _read_lines(folder / CSV_NAME, None, problems)


def read_journal(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the lines of a run's journal like `read_rows`.

    Raises:
        LogError: there is no journal or log, or it is not one.
    """
    yield from _read_lines(folder / JOURNAL_NAME, header=journal_columns(read_header(folder)))


def read_header(folder: Path, name: str = CSV_NAME) -> tuple[str, ...]:
    """Returns the columns that the first line of a run's log names. `name`: the file.

    Raises:
        LogError: there is no log, or its first line cannot be read.
    """
    path = folder / name
    try:
        with io.TextIOWrapper(open_file(path), encoding="utf-8", errors="replace") as file:
            return tuple(next(csv.reader(file), ()))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    except csv.Error as error:
        raise LogError(f"{path}, line 1, cannot be read: {error}") from error


def journal_columns(header: Collection[str]) -> tuple[str, ...]:
    """Returns the columns of the journal, which has no header line, of a run whose log has the columns `header`."""
    return tuple(name for name in COLUMNS if name not in ADDED or name in header)


def _read_lines(
    path: Path, header: tuple[str, ...] | None, problems: list[str] | None = None
) -> Iterator[dict[str, str]]:
    """Yields the rows of a file by column. `header` names the columns of a file without a header line."""
    try:
        with io.TextIOWrapper(open_file(path), encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    # Text after the last line end is part of a row, from a killed process.
    lines = ((line, _cells(each)) for line, each in enumerate(text.split("\n")[:-1], start=1) if each)
    names = header or next(lines, (1, ()))[1]
    if not frozenset(names).issuperset(_REQUIRED):
        raise LogError(f"{path} is not a latency log: its first line does not name the expected columns")
    absent = dict.fromkeys((name for name in ADDED if name not in names), "")
    for line, cells in lines:
        fields = dict(zip(names, cells, strict=False))
        if len(cells) == len(names) and fields["outcome"] in _OUTCOMES:
            yield fields | absent
        elif problems is None:
            raise LogError(f"{path}, line {line}, is not a row of a latency log")
        else:
            problems.append(f"{path}, line {line}, is not a row of a latency log: it is skipped")


def _cells(line: str) -> tuple[str, ...]:
    """Returns the cells of a line; none if it is not CSV."""
    try:
        return tuple(next(csv.reader([line]), ()))
    except csv.Error:
        return ()


def outcomes(rows: Iterable[Mapping[str, str]]) -> Counter[Outcome]:
    """Counts frames by outcome."""
    return Counter(Outcome(row["outcome"]) for row in rows)
