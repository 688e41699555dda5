"""The latency log: one CSV row for every frame read, a journal that survives a kill, and a manifest beside them."""

import csv
import errno
import fcntl
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from shared.clock import Offset
from shared.errors import SkylaneError, unwritable_message
from shared.runlog.lost_rows import LostRows
from shared.sanitize import printable
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage, durations_ns

CSV_NAME = "latency.csv"
JOURNAL_NAME = "latency.journal"


class LogError(SkylaneError):
    """A run's log cannot be written or read."""


class Outcome(StrEnum):
    """What became of a frame; every frame read has exactly one."""

    ANSWERED = "answered"
    DROPPED = "dropped"  # Given up at the edge.
    EXPIRED = "expired"  # Answered after its deadline, or the worker's word for it.
    OVERLOADED = "overloaded"
    REJECTED = "rejected"
    FAILED = "failed"
    LOST = "lost"  # No answer by deadline and grace.
    ABORTED = "aborted"  # Open when the edge died.


_OUTCOMES = frozenset(Outcome)


@dataclass(frozen=True, slots=True)
class Row:
    """All that is known of one frame when it is closed. Times are nanoseconds of the node that took them."""

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
    model: str = ""  # As asked for; who answered stands behind it.
    model_version: str = ""
    engine: str = ""
    worker: str = ""
    worker_session: str = ""
    batch_size: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    edge_times: Mapping[Stage, int] = field(default_factory=dict)
    cloud_times: Mapping[Stage, int] = field(default_factory=dict)
    clock: Offset | None = None


_FACTS = (
    "vehicle", "camera", "session", "sequence", "outcome", "reason", "frame_index", "frame_stamp_ns", "source_ns",
    "model", "model_version", "engine", "worker", "worker_session", "attempts", "batch_size", "bytes_up", "bytes_down",
)  # fmt: skip
TEXT_COLUMNS = (
    "vehicle", "camera", "session", "outcome", "reason", "model", "model_version", "engine", "worker", "worker_session",
)  # fmt: skip
_NUMBERS = tuple(name for name in _FACTS if name not in TEXT_COLUMNS)
_MAX_TEXT = 200
_WORKERS_WORDS = ("reason", "model_version", "engine", "worker_session")
_FORMULA = tuple("=+-@＝＋－＠")  # What a spreadsheet takes for one, and calculates.
_TIME_COLUMNS = {stage: f"t_{stage}_ns" for stage in (*EDGE_STAGES, *CLOUD_STAGES)}
_DURATION_COLUMNS = {stage: f"{stage}_ms" for stage in (*EDGE_STAGES, *CLOUD_STAGES)}
_DURATIONS = tuple(stage for stage in (*EDGE_STAGES, *CLOUD_STAGES) if stage not in (Stage.DUE, Stage.RECEIVED))
_SUMS = ("total", "cloud", "crossing", "uplink", "downlink", "clock_offset", "clock_error", "read", "retry_wait")
_ONE_WAY = ("uplink", "downlink")
COLUMNS = (
    *_FACTS,
    *_TIME_COLUMNS.values(),
    *(_DURATION_COLUMNS[stage] for stage in _DURATIONS),
    *(f"{name}_ms" for name in _SUMS),
    *(f"{name}_resolved" for name in _ONE_WAY),
)


def fields_of(row: Row) -> dict[str, str]:
    """A row as CSV text by column. What was not measured is empty, never zero.

    `total_ms` = mask_decoded - due and is the sum of the edge's durations, of which `returned_ms` is the time away;
    `cloud_ms` = replied - received and is the sum of the cloud's; `crossing_ms` = `returned_ms` - `cloud_ms` needs no
    common clock; `uplink_ms` and `downlink_ms` split it by `clock_offset_ms` (the worker's clock minus the edge's) and
    are each true to within `clock_error_ms`, and resolved (1, else 0) where they are larger than that. Of a frame that
    was sent twice, `sent` is when the attempt that was answered left: `sent_ms` then holds `retry_wait_ms`, the time
    from the first attempt to that one, and all that follows is of that attempt alone.
    """
    fields = {name: str(getattr(row, name)) for name in _NUMBERS}
    for name in TEXT_COLUMNS:
        # One line a row, whatever a camera is called: half a row of a killed process must be known by its missing end.
        text = " ".join(printable(getattr(row, name)).split())
        if name in _WORKERS_WORDS and text.startswith(_FORMULA):
            text = f"'{text}"
        fields[name] = text[:_MAX_TEXT]
    for times in (row.edge_times, row.cloud_times):
        for stage, at_ns in times.items():
            fields[_TIME_COLUMNS[stage]] = str(at_ns)
        for stage, duration_ns in durations_ns(times).items():
            fields[_DURATION_COLUMNS[stage]] = milliseconds(duration_ns)
    sums = _sums_ns(row)
    for name, value_ns in sums.items():
        fields[f"{name}_ms"] = milliseconds(value_ns)
    if row.clock and "crossing" in sums:
        for name in _ONE_WAY:
            fields[f"{name}_resolved"] = "1" if sums[name] > sums["clock_error"] else "0"
    return fields


def milliseconds(value_ns: int) -> str:
    """Nanoseconds as milliseconds with six decimals: exact, so that sums of the columns stay exact."""
    sign, value_ns = ("-", -value_ns) if value_ns < 0 else ("", value_ns)
    return f"{sign}{value_ns // 1_000_000}.{value_ns % 1_000_000:06d}"


def _sums_ns(row: Row) -> dict[str, int]:
    edge, cloud = row.edge_times, row.cloud_times
    sums = {"read": row.read_ns, "retry_wait": row.retry_wait_ns}
    if Stage.DUE in edge and Stage.MASK_DECODED in edge:
        sums["total"] = edge[Stage.MASK_DECODED] - edge[Stage.DUE]
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


_NEEDS_QUOTES = re.compile(r'["\r\n]').search  # Beside a comma too many.
_CLOSED = -1  # A thread that outlives its log must not write to whatever has the number next.


class LogWriter:
    """Writes a run's log: rows as they close, one system call a row, so that a kill leaves only whole rows.

    A full disk does not stop the run: what could not be written is counted in `rows_lost`, `fault` says why, and
    `shared.runlog.lost_rows` keeps which frames that were.
    """

    def __init__(self, folder: Path) -> None:
        """Start a log in `folder`.

        Raises:
            LogError: the folder cannot be made or written, has no room, or already holds a log.
        """
        self.rows_lost = 0
        self.fault: OSError | None = None
        self._folder = folder
        self._lost: LostRows | None = None  # It takes what the log itself leaves.
        is_new = not folder.exists()
        try:
            with ExitStack() as made:  # Undone where the log cannot be started.
                folder.mkdir(parents=True, exist_ok=True)
                if is_new:
                    made.callback(_remove_empty, folder)
                self._csv = _created(folder / CSV_NAME, made)
                self._journal = _created(folder / JOURNAL_NAME, made)
                with suppress(OSError):  # A file system without locks only loses the warning that a run still goes on.
                    fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self._append(self._csv, ",".join(COLUMNS) + "\n"):
                    assert self.fault is not None
                    raise self.fault
                made.pop_all()
        except FileExistsError as error:
            is_file = folder.exists() and not folder.is_dir()
            problem = "is a file, where a folder is needed" if is_file else "already holds a run"
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

    def open(self, row: Row) -> None:
        """Note a frame in the journal before it is published; `row.outcome` is what a death would make of it."""
        self._append(self._journal, line_of(fields_of(row)))

    def close(self, row: Row) -> None:
        """Write a frame's row."""
        if not self._append(self._csv, line_of(fields_of(row))):
            self.rows_lost += 1
            if self._lost is not None:
                self._lost.note(row.sequence, row.outcome)

    def _append(self, file: int, text: str) -> bool:
        data = text.encode(errors="backslashreplace")  # The name of a folder need not be UTF-8.
        try:
            written = os.write(file, data)
            if written == len(data):
                return True
            # A disk that fills may take half a row: take that half back.
            os.ftruncate(file, os.lseek(file, 0, os.SEEK_END) - written)
            self.fault = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.fault = error
        return False


def _created(path: Path, made: ExitStack) -> int:
    """Creates a file that must not exist; `made` closes and removes it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    made.callback(path.unlink)
    made.callback(os.close, file)
    return file


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def line_of(fields: Mapping[str, str]) -> str:
    """A row by column as one line of CSV."""
    values = [fields.get(column, "") for column in COLUMNS]
    line = ",".join(values) + "\n"
    if line.count(",") == len(values) - 1 and not _NEEDS_QUOTES(line, 0, len(line) - 1):
        return line
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def read_rows(folder: Path) -> Iterator[dict[str, str]]:
    """Yield a run's rows by column, as text; an empty text was not measured.

    Raises:
        LogError: there is no log, or it is not one of ours.
    """
    yield from read_lines(folder / CSV_NAME, header=None)


def read_lines(path: Path, header: tuple[str, ...] | None) -> Iterator[dict[str, str]]:
    """Yield a file's rows by column; `header`: the columns where the file itself does not name them.

    Raises:
        LogError: the file is not one of ours.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from error
    # What follows the last line's end is half a row from a killed process.
    reader = csv.DictReader(text.split("\n")[:-1], fieldnames=header)
    try:
        if not set(COLUMNS) <= set(reader.fieldnames or ()):
            raise LogError(f"{path} is not a latency log: its first line does not name the columns of one")
        for fields in reader:
            if None in fields or None in fields.values() or fields["outcome"] not in _OUTCOMES:
                raise LogError(f"{path}, line {reader.line_num}, is not a row of a latency log")
            yield fields
    except csv.Error as error:
        raise LogError(f"{path}, line {reader.line_num}, cannot be read: {error}") from error


def outcomes(rows: Iterable[Mapping[str, str]]) -> Counter[Outcome]:
    """How many frames ended how."""
    return Counter(Outcome(row["outcome"]) for row in rows)
