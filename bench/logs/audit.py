"""What a run promises, held against its files: `skylane report RUN --check`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.logs.log_rows import LogRows, read_log
from bench.logs.problems import Problem, Problems
from bench.logs.resource_log import load_resources
from bench.logs.text_table import read_table
from bench.logs.timing_checks import check_journeys
from shared.runlog.latency_log import COLUMNS, CSV_NAME, JOURNAL_NAME, LogError, Outcome
from shared.runlog.run_manifest import MANIFEST_NAME

_ENDED = ("complete", "repaired")
_SHA256_DIGITS = 64
_SHOWN_GAPS = 20
_FRAMES_AT_MOST = 1 << 62  # What 64 bits can count.


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: how many rows (or facts) it was held against, and where it is broken."""

    name: str
    looked_at: int
    problems: tuple[Problem, ...]


def audit(folder: Path) -> tuple[Problem, ...]:
    """All broken promises of a run; none where it is sound.

    Raises:
        LogError: there is no log, or it is one of another schema.
    """
    return tuple(problem for check in checks(folder) for problem in check.problems)


def checks(folder: Path) -> tuple[Check, ...]:
    """Everything that is held against a run's files.

    Raises:
        LogError: as for `audit`.
    """
    rows = read_log(folder)
    _, of_resources = load_resources(folder)
    journeys = check_journeys(rows, folder / CSV_NAME)
    return (
        *(Check(name, rows.looked_at[name], problems) for name, problems in rows.problems.items()),
        *(Check(name, len(rows.table), problems) for name, problems in journeys.items()),
        Check("unanswered frames have a reason", len(rows.table), _reasons(rows, folder)),
        Check("every sequence number has its row", len(rows.table), _sequences(rows, folder)),
        Check("outcomes sum to the frames read", len(rows.table), _counts(rows, folder)),
        Check("every frame that was sent has its row", len(rows.table), _journal(rows, folder)),
        Check("source and model are named by their hashes", 2, _hashes(rows.manifest, folder)),
        Check("resources can be read", 1, of_resources),
    )


def _reasons(rows: LogRows, folder: Path) -> tuple[Problem, ...]:
    problems = Problems(folder / CSV_NAME)
    mute = rows.table.empty("reason") & ~rows.table.one_of("outcome", [Outcome.ANSWERED])
    problems.rows("rows without a reason", rows.table.lines[mute], lambda _: "is empty, though not answered", "reason")
    return problems.all()


def _sequences(rows: LogRows, folder: Path) -> tuple[Problem, ...]:
    """Frames are numbered from 0 without a gap, whichever camera they are of."""
    problems = Problems(folder / CSV_NAME)
    numbers = np.sort(rows.numbers["sequence"].whole)
    read = rows.manifest.get("frames_read")
    end = read if isinstance(read, int) and 0 <= read < _FRAMES_AT_MOST else 0
    before = np.concatenate(([-1], numbers))
    after = np.concatenate((numbers, [max(end, int(numbers[-1]) + 1 if len(numbers) else 0)]))
    gaps = np.flatnonzero(after - before > 1)
    for gap in gaps[:_SHOWN_GAPS]:
        first, last = int(before[gap]) + 1, int(after[gap]) - 1
        problems.whole(f"frame {first} has no row" if first == last else f"frames {first} to {last} have no rows")
    if len(gaps) > _SHOWN_GAPS:
        problems.whole(f"{len(gaps) - _SHOWN_GAPS} more gaps in the sequence")
    return problems.all()


def _counts(rows: LogRows, folder: Path) -> tuple[Problem, ...]:
    problems = Problems(folder / MANIFEST_NAME)
    manifest = rows.manifest
    if not manifest:
        return ()  # Which is told where the manifest is looked at.
    if manifest.get("state") not in (*_ENDED, "running"):
        lost = manifest.get("rows_lost")
        problems.whole(f"the run is {manifest.get('state')!r}: {lost} rows were not written")
    if manifest.get("frames_read") != len(rows.table):
        problems.whole(f"frames_read is {manifest.get('frames_read')!r}, but {CSV_NAME} has {len(rows.table)} rows")
    counted = manifest.get("outcomes")
    counted = counted if isinstance(counted, dict) else {}
    for outcome in Outcome:
        count = int(rows.table.one_of("outcome", [outcome]).sum())
        if counted.get(outcome.value) != count:
            problems.whole(f"outcomes.{outcome} is {counted.get(outcome.value)!r}, but {CSV_NAME} has {count}")
    return problems.all()


def _journal(rows: LogRows, folder: Path) -> tuple[Problem, ...]:
    """What was sent is in the journal, and what is in the journal has ended."""
    path = folder / JOURNAL_NAME
    problems = Problems(path)
    try:
        journal = read_table(path, problems, COLUMNS)
    except LogError as error:
        problems.whole(str(error).removeprefix(f"{path} "))
        return problems.all()
    opened = journal.integers("sequence")
    ours = opened.known & journal.one_of("session", [rows.session])
    problems.rows("lines of other runs", journal.lines[~ours], lambda _: "is of no frame of this run")
    closed = rows.numbers["sequence"].whole
    left = ours & ~np.isin(opened.whole, closed)
    sequences = opened.whole[left]
    problems.rows(
        "frames that were sent and have no row",
        journal.lines[left],
        lambda place: f"frame {sequences[place]} was sent and has no row in {CSV_NAME}",
        "sequence",
    )
    attempts = rows.numbers["attempts"].whole
    numbers, times = np.unique(opened.whole[ours], return_counts=True)
    noted = np.zeros_like(attempts)
    is_noted = np.isin(closed, numbers)
    noted[is_noted] = times[np.searchsorted(numbers, closed[is_noted])]
    differs = (noted > 0) & (attempts > 0) & (noted != attempts)
    for sequence, lines, count in zip(closed[differs][:_SHOWN_GAPS], noted[differs], attempts[differs], strict=False):
        problems.whole(f"has {lines} lines of frame {sequence}, which was sent {count} times")
    sent = attempts > 0
    for sequence in closed[sent & ~np.isin(closed, opened.whole[ours])][:_SHOWN_GAPS]:
        problems.whole(f"has no line of frame {sequence}, which was sent")
    return problems.all()


def _hashes(manifest: Mapping[str, Any], folder: Path) -> tuple[Problem, ...]:
    problems = Problems(folder / MANIFEST_NAME)
    for name in ("source", "model") if manifest else ():
        facts = manifest.get(name)
        facts = facts if isinstance(facts, dict) else {}
        sha256 = facts.get("sha256")
        is_hash = isinstance(sha256, str) and len(sha256) == _SHA256_DIGITS and not sha256.strip("0123456789abcdef")
        if not is_hash and facts.get("kind") != "camera":  # What a camera saw cannot be hashed.
            problems.whole(f"{name}.sha256 is {sha256!r}, which is no SHA-256: what was played cannot be traced")
    return problems.all()
