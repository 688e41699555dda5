"""Completes the log of a killed run: adds rows for frames that it lacks (`skylane report RUN --repair`).

The outcome of frames whose rows a full disk lost may still be known, see `shared.runlog.lost_rows`.
"""

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.runlog.latency_log import (
    CSV_NAME,
    JOURNAL_NAME,
    LogError,
    Outcome,
    csv_line,
    outcomes,
    read_header,
    read_journal,
    read_rows,
)
from shared.runlog.lost_rows import CAPACITY, LETTERS, count_uncovered, read_lost
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest, write_manifest

_BY_LETTER = {letter: outcome for outcome, letter in LETTERS.items()}
_MAX_UNSENT = 1 << 17  # Twice the frames that a vehicle node lets wait; a larger gap is damage.


def repair_all(parent: Path) -> dict[Path, int]:
    """Repairs every killed run directly under `parent`; returns the number of rows added to each.

    Runs that cannot be repaired are skipped; `repair` reports why.
    """
    repaired = {}
    for journal in sorted(parent.glob(f"*/{JOURNAL_NAME}")):
        try:
            if read_manifest(journal.parent).get("state") == "running":
                repaired[journal.parent] = repair(journal.parent)
        except LogError:
            continue
    return repaired


def repair(folder: Path) -> int:
    """Adds a row with the outcome `aborted` for every frame without one; returns their number. Repeating it adds none.

    The reason shows whether a frame was in flight when the vehicle node died, or had ended but its row was lost to a
    full disk. Frames that became due after the last one in the log and the journal leave no trace.

    Raises:
        LogError: `folder` holds no run, the run is still going on or ended regularly without some rows, or the log
            cannot be written.
    """
    with _locked(folder / JOURNAL_NAME):
        _check_was_killed(folder)
        closed = {_frame(row): row for row in read_rows(folder)}
        # A frame that was sent twice has two lines; the later one is more complete.
        opened = {_frame(row): row for row in read_journal(folder)}
        known = _lost(folder, opened | closed) | opened | closed
        missing = [row for frame, row in known.items() if frame not in closed] + _unsent(known)
        reasons = _Reasons(folder)
        _append_rows(folder, [row | {"reason": reasons.of(row)} for row in missing])
        if (folder / MANIFEST_NAME).exists():  # A run killed early has none.
            _close_manifest(folder)
    return len(missing)


class _Reasons:
    """Finds the reason for each added row."""

    def __init__(self, folder: Path) -> None:
        self._letters = read_lost(folder)
        self._uncovered_from = min(self._letters, default=0) + CAPACITY if count_uncovered(folder) else None

    def of(self, row: Mapping[str, str]) -> str:
        sequence = int(row["sequence"])
        if letter := self._letters.get(sequence):
            return f"row_lost: {_BY_LETTER.get(letter, letter)}"
        may_be_lost = self._uncovered_from is not None and sequence >= self._uncovered_from
        return "row_lost or edge_died" if may_be_lost else "edge_died"


def _lost(folder: Path, known: Mapping[tuple[str, int], Mapping[str, str]]) -> dict[tuple[str, int], dict[str, str]]:
    """Returns rows for frames known only from the file of lost rows, as a full disk loses the journal too."""
    sequences = read_lost(folder)
    if not sequences:
        return {}
    source: Mapping[str, Any] = next(iter(known.values())) if known else read_manifest(folder)
    vehicle, session = str(source.get("vehicle", "")), str(source.get("session", ""))
    cameras = {row["camera"] for row in known.values()}
    row = {"vehicle": vehicle, "camera": _only(cameras), "session": session, "outcome": Outcome.ABORTED.value}
    return {(session, sequence): row | {"sequence": str(sequence)} for sequence in sequences}


def _check_was_killed(folder: Path) -> None:
    """Refuses a run that ended regularly but lost rows to a full disk; its manifest counts all outcomes."""
    manifest = read_manifest(folder) if (folder / MANIFEST_NAME).exists() else {}
    if manifest.get("state") == "incomplete":
        raise LogError(
            f"{folder} was not killed: {manifest.get('rows_lost')} rows were lost because the disk was full; "
            f"{MANIFEST_NAME} counts the outcomes of all frames"
        )


def _frame(row: Mapping[str, str]) -> tuple[str, int]:
    try:
        return row["session"], int(row["sequence"])
    except ValueError as error:
        raise LogError(f"a row has the sequence {row['sequence']!r}, which is not a number") from error


def _unsent(known: Mapping[tuple[str, int], Mapping[str, str]]) -> list[dict[str, str]]:
    """Returns rows for frames that were due before known ones but were never sent.

    Their times are unknown, and so is their camera if there are several.
    """
    last = dict(sorted(known))  # Highest sequence number of each session.
    if sum(last.values()) > len(known) + _MAX_UNSENT:
        raise LogError(f"the sequence number {max(last.values())} is far above the {len(known)} known frames")
    cameras = {session: {row["camera"] for (of, _), row in known.items() if of == session} for session in last}
    return [
        {
            "vehicle": known[session, end]["vehicle"],
            "camera": _only(cameras[session]),
            "session": session,
            "sequence": str(sequence),
            "outcome": Outcome.ABORTED.value,
        }
        for session, end in last.items()
        for sequence in range(end)
        if (session, sequence) not in known
    ]


def _only(cameras: Collection[str]) -> str:
    """Returns the camera if there is only one, else an empty text."""
    return "".join(cameras) if len(cameras) == 1 else ""


@contextmanager
def _locked(journal: Path) -> Iterator[None]:
    """Locks the journal of a run, which its writer keeps locked while it lives."""
    try:
        with journal.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise LogError(f"{journal.parent} is being written by a node that still runs: stop it first") from error
    except OSError as error:
        raise LogError(f"{journal} cannot be read: {error.strerror}: give the folder of a run") from error


def _append_rows(folder: Path, rows: Iterable[Mapping[str, str]]) -> None:
    path, columns = folder / CSV_NAME, read_header(folder)  # A run of an earlier version has fewer columns.
    try:
        text = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)
            for row in rows:
                file.write(csv_line(row, columns).encode())
    except OSError as error:
        raise LogError(f"{path} cannot be repaired: {error.strerror}") from error


def _close_manifest(folder: Path) -> None:
    manifest = read_manifest(folder)
    if manifest.get("state") == "running":
        counts = outcomes(read_rows(folder))
        read = sum(counts.values())
        state = {"state": "repaired", "frames_read": read, "outcomes": {name.value: counts[name] for name in Outcome}}
        write_manifest(folder, manifest | state)
