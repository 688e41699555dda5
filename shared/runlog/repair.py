"""Completes the logs of a killed run: adds rows for frames that they lack (`skylane report RUN --repair`).

The outcome of frames whose rows a full disk lost may still be known, see `shared.runlog.lost_rows`.
"""

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shared.files import open_file, open_own, read_file
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
from shared.runlog.lost_rows import CAPACITY, LETTERS, read_lost
from shared.runlog.presented_log import (
    ABORTED,
    PRESENTED_NAME,
    OutputOrigin,
    PresentedCounts,
    presented_fields,
    read_presented,
)
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest, write_manifest

_BY_LETTER = {letter: outcome for outcome, letter in LETTERS.items()}
_Frame = tuple[str, int]  # Session and sequence number.
_MAX_UNSENT = 1 << 17  # Twice the frames that a vehicle node lets wait; a larger gap is damage.


def repair_all(parent: Path) -> dict[Path, int]:
    """Repairs every killed run directly under `parent`; returns the number of rows added to each.

    Runs that cannot be repaired are skipped; `repair` reports why.
    """
    repaired = {}
    for folder in killed_runs(parent):
        with suppress(LogError):
            repaired[folder] = repair(folder)
    return repaired


def killed_runs(parent: Path) -> Iterator[Path]:
    """Yields the folder of every run directly under `parent` whose vehicle was killed, and which was not repaired since."""
    for journal in sorted(parent.glob(f"*/{JOURNAL_NAME}")):
        with suppress(LogError):
            if read_manifest(journal.parent).get("state") == "running":
                with _locked(journal):
                    pass
                yield journal.parent


def repair(folder: Path) -> int:
    """Adds a row with the outcome `aborted` for every frame without one; returns their number. Repeating it adds none.

    The reason shows whether a frame was in flight when the vehicle node died, or had ended but its row was lost to a
    full disk. Frames that became due after the last one in the logs and the journal leave no trace. If the run had a
    presenter, every frame without a tick in its log gets one that was aborted.

    Raises:
        LogError: `folder` holds no run, the run is still going on or ended regularly without some rows, or the log
            cannot be written.
    """
    with _locked(folder / JOURNAL_NAME):
        _check_was_killed(folder)
        closed = {_frame(row): row for row in read_rows(folder)}
        # A frame that was sent twice has two lines; the later one is more complete.
        opened = {_frame(row): row for row in read_journal(folder)}
        known = opened | closed
        known = _lost(folder, known) | _presented(folder, known) | known
        missing = [row for frame, row in known.items() if frame not in closed] + _unsent(known)
        columns = read_header(folder)  # A run of an earlier version has fewer columns.
        _append_rows(folder / CSV_NAME, columns, list(_with_reasons(folder, missing)))
        if (folder / PRESENTED_NAME).exists():
            _append_rows(folder / PRESENTED_NAME, read_header(folder, PRESENTED_NAME), list(_missing_ticks(folder)))
        if (folder / MANIFEST_NAME).exists():  # A run killed early has none.
            _close_manifest(folder)
    return len(missing)


def _with_reasons(folder: Path, rows: Sequence[Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Yields the added rows, each with its reason."""
    letters, uncovered = read_lost(folder)
    uncovered_from = min(letters, default=0) + CAPACITY if uncovered else None
    for row in rows:
        sequence = int(row["sequence"])
        reason = "edge_died" if uncovered_from is None or sequence < uncovered_from else "row_lost or edge_died"
        if letter := letters.get(sequence):
            reason = f"row_lost: {_BY_LETTER.get(letter, letter)}"
        yield {**row, "reason": reason}


def _lost(folder: Path, known: Mapping[_Frame, Mapping[str, str]]) -> dict[_Frame, dict[str, str]]:
    """Returns rows for frames known only from the file of lost rows, as a full disk loses the journal too."""
    sequences, _ = read_lost(folder)
    if not sequences:
        return {}
    vehicle, session = _vehicle_and_session(folder, known)
    cameras = {row["camera"] for row in known.values()}
    row = {"vehicle": vehicle, "camera": _only(cameras), "session": session, "outcome": Outcome.ABORTED.value}
    return {(session, sequence): row | {"sequence": str(sequence)} for sequence in sequences}


def _presented(folder: Path, known: Mapping[_Frame, Mapping[str, str]]) -> dict[_Frame, dict[str, str]]:
    """Returns rows for frames known from the log of outputs, such as those that were never sent."""
    if not (folder / PRESENTED_NAME).exists():
        return {}
    vehicle, session = _vehicle_and_session(folder, known)
    columns = {"frame_index": "frame_index", "frame_stamp_ns": "frame_stamp_ns", "t_due_ns": "due_ns"}
    rows = {}
    for tick in read_presented(folder):
        if tick.session != session:
            raise LogError(f"{folder / PRESENTED_NAME} belongs to session {tick.session!r}, the run to {session!r}")
        fields = presented_fields(tick)
        row = {"vehicle": vehicle, "camera": tick.camera, "session": session, "outcome": Outcome.ABORTED.value}
        row |= {name: fields[column] for name, column in columns.items()}
        rows[session, tick.tick] = row | {"sequence": str(tick.tick)}
    return rows


def _vehicle_and_session(folder: Path, known: Mapping[_Frame, Mapping[str, str]]) -> tuple[str, str]:
    source: Mapping[str, Any] = next(iter(known.values())) if known else read_manifest(folder)
    return str(source.get("vehicle", "")), str(source.get("session", ""))


def _missing_ticks(folder: Path) -> Iterator[dict[str, str]]:
    """Yields a row for every frame of the repaired latency log that has none in the log of outputs."""
    presented = {(row.session, row.tick) for row in read_presented(folder)}
    for row in read_rows(folder):
        if _frame(row) not in presented:
            yield {
                "camera": row["camera"],
                "session": row["session"],
                "tick": row["sequence"],
                "frame_index": row["frame_index"],
                "frame_stamp_ns": row["frame_stamp_ns"],
                "due_ns": row["t_due_ns"],
                "origin": OutputOrigin.NONE.value,
                "reason": ABORTED,
            }


def _check_was_killed(folder: Path) -> None:
    """Refuses a run that ended regularly but lost rows to a full disk; its manifest counts all outcomes."""
    manifest = read_manifest(folder) if (folder / MANIFEST_NAME).exists() else {}
    if manifest.get("state") == "incomplete":
        raise LogError(
            f"{folder} was not killed: {manifest.get('rows_lost')} rows were lost because the disk was full; "
            f"{MANIFEST_NAME} counts the outcomes of all frames"
        )


def _frame(row: Mapping[str, str]) -> _Frame:
    try:
        return row["session"], int(row["sequence"])
    except ValueError as error:
        raise LogError(f"a row has the sequence {row['sequence']!r}, which is not a number") from error


def _unsent(known: Mapping[_Frame, Mapping[str, str]]) -> list[dict[str, str]]:
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
        with open_file(journal) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise LogError(f"{journal.parent} is being written by a node that still runs: stop it first") from error
    except OSError as error:
        raise LogError(f"{journal} cannot be read: {error.strerror}: give the folder of a run") from error


def _append_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Appends rows to a log, after removing the part of a row that a kill left at its end."""
    try:
        text = read_file(path)
        with open_own(path) as file:
            file.truncate(text.rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)
            file.writelines(csv_line(row, columns).encode() for row in rows)
    except OSError as error:
        raise LogError(f"{path} cannot be repaired: {error.strerror}") from error


def _close_manifest(folder: Path) -> None:
    manifest = read_manifest(folder)
    if manifest.get("state") == "running":
        counts = outcomes(read_rows(folder))
        read = sum(counts.values())
        state: dict[str, Any] = {
            "state": "repaired",
            "frames_read": read,
            "outcomes": {name.value: counts[name] for name in Outcome},
        }
        if isinstance(presenting := manifest.get("presenting"), dict) and (folder / PRESENTED_NAME).exists():
            presented = PresentedCounts()
            for row in read_presented(folder):
                presented.add(row)
            state["presenting"] = presenting | presented.record()
        write_manifest(folder, manifest | state)
