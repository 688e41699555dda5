"""Closing what a killed run left open: frames that are in the journal, or were passed over, and not in the log.

Of frames whose rows a full disk did not take, the outcome may be known all the same: `shared.runlog.lost_rows`.
"""

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.runlog.latency_log import (
    COLUMNS,
    CSV_NAME,
    JOURNAL_NAME,
    LogError,
    Outcome,
    line_of,
    outcomes,
    read_lines,
    read_rows,
)
from shared.runlog.lost_rows import FRAMES, lost_beyond, read_lost
from shared.runlog.run_manifest import MANIFEST_NAME, read_manifest, write_manifest

_BY_LETTER = {outcome.value[0]: outcome for outcome in Outcome if outcome is not Outcome.ABORTED}
_MOST_UNSENT = 1 << 17  # Twice as many as an edge node lets wait; a number beyond was not written by one.


def repair_all(parent: Path) -> dict[Path, int]:
    """Repair every run directly under `parent` that says it is going on and is not; how many frames each had open.

    A run that cannot be repaired is left as it is: `repair` says why.
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
    """Close what has no row as `aborted`; returns how many frames that were. Doing it twice does no more.

    The reason says which were open when the vehicle node died, and which had ended, and how, when a full disk did not
    take their rows.

    Frames that were read and not yet due when it died are not known of, and of those that were due after every frame
    with a row or a line of its own nothing is left to tell.

    Raises:
        LogError: `folder` holds no run, one that still goes on or one that ended by itself short of rows; or it cannot
            be written.
    """
    with _locked(folder / JOURNAL_NAME):
        _check_was_killed(folder)
        closed = {_frame(row): row for row in read_rows(folder)}
        # A frame that was sent twice has two lines; the last one knows more.
        opened = {_frame(row): row for row in read_lines(folder / JOURNAL_NAME, header=COLUMNS)}
        known = _lost(folder, opened | closed) | opened | closed
        missing = [row for frame, row in known.items() if frame not in closed] + _unsent(known)
        why = _Reasons(folder)
        _append_rows(folder / CSV_NAME, [row | {"reason": why.of(row)} for row in missing])
        if (folder / MANIFEST_NAME).exists():  # It is written a moment later than the log begins.
            _close_manifest(folder)
    return len(missing)


class _Reasons:
    """Why a frame has no row."""

    def __init__(self, folder: Path) -> None:
        self._letters = read_lost(folder)
        self._beyond_from = min(self._letters, default=0) + FRAMES if lost_beyond(folder) else None

    def of(self, row: Mapping[str, str]) -> str:
        sequence = int(row["sequence"])
        if letter := self._letters.get(sequence):
            return f"row_lost: {_BY_LETTER.get(letter, letter)}"
        is_beyond = self._beyond_from is not None and sequence >= self._beyond_from
        return "row_lost or edge_died" if is_beyond else "edge_died"


def _lost(folder: Path, known: Mapping[tuple[str, int], Mapping[str, str]]) -> dict[tuple[str, int], dict[str, str]]:
    """What is known of the frames whose rows were lost, where nothing else is: a full disk takes no journal either."""
    sequences = read_lost(folder)
    if not sequences:
        return {}
    told: Mapping[str, Any] = next(iter(known.values())) if known else read_manifest(folder)
    vehicle, session = str(told.get("vehicle", "")), str(told.get("session", ""))
    cameras = {row["camera"] for row in known.values()}
    row = {"vehicle": vehicle, "camera": _only(cameras), "session": session, "outcome": Outcome.ABORTED.value}
    return {(session, sequence): row | {"sequence": str(sequence)} for sequence in sequences}


def _check_was_killed(folder: Path) -> None:
    """A row that found no room on the disk is not one that was open: what became of its frame, the manifest counts."""
    manifest = read_manifest(folder) if (folder / MANIFEST_NAME).exists() else {}
    if manifest.get("state") == "incomplete":
        raise LogError(
            f"{folder} was not killed: {manifest.get('rows_lost')} rows found no room on the disk and cannot be had back; "
            f"{MANIFEST_NAME} counts what became of all frames"
        )


def _frame(row: Mapping[str, str]) -> tuple[str, int]:
    try:
        return row["session"], int(row["sequence"])
    except ValueError as error:
        raise LogError(f"a row has {row['sequence']!r} for its sequence, which is no number") from error


def _unsent(known: Mapping[tuple[str, int], Mapping[str, str]]) -> list[dict[str, str]]:
    """Frames that were due before others that are known, and died on their way to be sent.

    Nothing else is known of them: not their times, nor, where there are several, their camera.
    """
    last = dict(sorted(known))  # By session: the highest of its sequence numbers.
    if sum(last.values()) > len(known) + _MOST_UNSENT:
        raise LogError(f"a sequence number ({max(last.values())}) lies far beyond the {len(known)} known frames")
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
    """The camera, where there is one; of several none is guessed."""
    return "".join(cameras) if len(cameras) == 1 else ""


@contextmanager
def _locked(journal: Path) -> Iterator[None]:
    """Hold a run's journal, which its writer holds as long as it lives."""
    try:
        with journal.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise LogError(f"{journal.parent} is being written by a node that still runs: stop it first") from error
    except OSError as error:
        raise LogError(f"{journal} cannot be read: {error.strerror}: give the folder of a run") from error


def _append_rows(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    try:
        text = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)
            for row in rows:
                file.write(line_of(row).encode())
    except OSError as error:
        raise LogError(f"{path} cannot be repaired: {error.strerror}") from error


def _close_manifest(folder: Path) -> None:
    manifest = read_manifest(folder)
    if manifest.get("state") == "running":
        counts = outcomes(read_rows(folder))
        read = sum(counts.values())
        state = {"state": "repaired", "frames_read": read, "outcomes": {name.value: counts[name] for name in Outcome}}
        write_manifest(folder, manifest | state)
