"""Checks the consistency of a run's files: `skylane report RUN --check`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.logs.log_rows import LogRows, read_log
from analysis.logs.presented_checks import check_presented, has_presenter
from analysis.logs.problems import Finding, Problem, ProblemCollector
from analysis.logs.row_checks import check_results, check_timing
from analysis.logs.run_log import load_resources
from analysis.logs.text_table import read_table
from edge.transports.transport import TRANSPORTS
from edge.workers.dispatcher import DISPATCHERS
from shared.runlog.latency_log import (
    CSV_NAME,
    JOURNAL_NAME,
    WITH_RESULT,
    LogError,
    Outcome,
    journal_columns,
    read_header,
)
from shared.runlog.presented_log import PRESENTED_NAME
from shared.runlog.run_manifest import MANIFEST_NAME

_FINISHED_STATES = ("complete", "repaired")
_SHA256_DIGITS = 64
_SHOWN_GAPS = 20
_FRAME_COUNT_END = 1 << 62  # A larger count in the manifest is corrupt.


@dataclass(frozen=True, slots=True)
class ConsistencyCheck:
    """The result of one check."""

    name: str  # The rule, such as "no frame has two rows".
    checked: int  # Number of rows or values that were checked.
    problems: tuple[Problem, ...]


def audit(folder: Path) -> tuple[Problem, ...]:
    """Returns all problems of a run; empty if its files are consistent.

    Raises:
        LogError: The log is missing or has another schema.
    """
    return tuple(problem for check in run_checks(folder) for problem in check.problems)


def run_checks(folder: Path) -> tuple[ConsistencyCheck, ...]:
    """Runs all checks on a run's files.

    Raises:
        LogError: See `audit`.
    """
    rows = read_log(folder)
    _, resource_problems = load_resources(folder)
    log, manifest = folder / CSV_NAME, folder / MANIFEST_NAME
    missing = rows.table.empty("reason") & ~rows.table.one_of("outcome", WITH_RESULT)
    unexplained = ProblemCollector(log)
    unexplained.add_rows(
        "rows without a reason", rows.table.lines[missing], "is empty, but the frame got no result", "reason"
    )
    by_row = {
        **check_timing(rows, log),
        **check_results(rows, log),
        "frames without a result have a reason": unexplained.collected(),
        "frames sent through a broker have a dispatch": check_dispatch(rows, folder),
        "every sequence number has a row": _of_file(log, _gaps(rows)),
        "outcomes sum to the frames read": _of_file(manifest, _wrong_counts(rows)),
        "every sent frame has a row": _check_journal(rows, folder),
    }
    ticks, of_ticks = check_presented(rows, folder) if has_presenter(rows, folder) else (0, {})
    count = len(rows.table)
    return (
        *(ConsistencyCheck(name, rows.checked[name], problems) for name, problems in rows.problems.items()),
        *(ConsistencyCheck(name, count, problems) for name, problems in by_row.items()),
        ConsistencyCheck("source and model have a hash", 2, _of_file(manifest, _missing_hashes(rows.manifest))),
        ConsistencyCheck("resources can be read", 1, resource_problems),
        *(ConsistencyCheck(name, ticks, problems) for name, problems in of_ticks.items()),
    )


def _of_file(path: Path, texts: Iterator[str]) -> tuple[Problem, ...]:
    return tuple(Problem(path, None, None, text) for text in texts)


def _gaps(rows: LogRows) -> Iterator[str]:
    """Yields the frames without a row: those of all cameras together are numbered from 0 without gaps."""
    if rows.lost:
        return  # `_wrong_counts` reports them.
    numbers = np.sort(rows.numbers["sequence"].data)
    read = rows.manifest.get("frames_read")
    end = read if isinstance(read, int) and 0 <= read < _FRAME_COUNT_END else 0
    before = np.concatenate(([-1], numbers))
    after = np.concatenate((numbers, [max(end, int(numbers[-1]) + 1 if len(numbers) else 0)]))
    gaps = np.flatnonzero(after - before > 1)
    for gap in gaps[:_SHOWN_GAPS]:
        first, last = int(before[gap]) + 1, int(after[gap]) - 1
        yield f"frame {first} has no row" if first == last else f"frames {first} to {last} have no rows"
    if len(gaps) > _SHOWN_GAPS:
        yield f"{len(gaps) - _SHOWN_GAPS} more gaps in the sequence"


def _wrong_counts(rows: LogRows) -> Iterator[str]:
    manifest = rows.manifest
    if not manifest:
        return  # `log_rows` reports a missing manifest.
    if rows.lost:
        presenting = manifest.get("presenting")
        ticks = presenting.get("rows_lost") if isinstance(presenting, Mapping) else 0
        others = f" and {ticks} to {PRESENTED_NAME}" if ticks else ""
        yield (
            f"the disk was full: {rows.lost:,} of {manifest['frames_read']:,} rows were not written to {CSV_NAME}{others}, as "
            "the run counted; the other rows are complete"
        )
    elif manifest.get("state") not in (*_FINISHED_STATES, "running"):
        yield f"the run is {manifest.get('state')!r}: {manifest.get('rows_lost')} rows were not written"
    if manifest.get("frames_read") != len(rows.table) + rows.lost:
        yield f"frames_read is {manifest.get('frames_read')!r}, but {CSV_NAME} has {len(rows.table)} rows"
    counted = manifest.get("outcomes")
    counted = counted if isinstance(counted, dict) else {}
    for outcome in Outcome:
        count = int(rows.table.one_of("outcome", [outcome]).sum())
        is_later_outcome = outcome.value not in counted and not count  # Earlier versions had fewer outcomes.
        absent = counted.get(outcome.value, 0) - count if rows.lost else 0
        if counted.get(outcome.value) != count + min(max(absent, 0), rows.lost) and not is_later_outcome:
            yield f"outcomes.{outcome} is {counted.get(outcome.value)!r}, but {CSV_NAME} has {count}"


def _check_journal(rows: LogRows, folder: Path) -> tuple[Problem, ...]:
    """Checks that every sent frame is in the journal and that every frame in the journal has a row."""
    path = folder / JOURNAL_NAME
    problems = ProblemCollector(path)
    try:
        journal = read_table(path, problems, journal_columns(read_header(folder)))
    except LogError as error:
        problems.add_file(str(error).removeprefix(f"{path} "))
        return problems.collected()
    opened = journal.integers("sequence")
    ours = opened.known & journal.one_of("session", [rows.session])
    problems.add_rows("lines of other runs", journal.lines[~ours], "does not belong to this run")
    closed = rows.numbers["sequence"].data
    unclosed = ours & ~np.isin(opened.data, closed)
    if rows.lost:  # The disk that lost rows has lost lines of the journal, too.
        unclosed &= opened.data >= rows.manifest["frames_read"]
    sequences = opened.data[unclosed]
    problems.add_rows(
        "sent frames without a row",
        journal.lines[unclosed],
        lambda index: f"frame {sequences[index]} was sent but has no row in {CSV_NAME}",
        "sequence",
    )
    attempts = rows.numbers["attempts"].data
    numbers, counts = np.unique(opened.data[ours], return_counts=True)
    journaled = np.zeros_like(attempts)
    in_journal = np.isin(closed, numbers)
    journaled[in_journal] = counts[np.searchsorted(numbers, closed[in_journal])]
    differs = (journaled > 0) & (attempts > 0) & ((journaled > attempts) if rows.lost else (journaled != attempts))
    for sequence, lines, sent in zip(
        closed[differs][:_SHOWN_GAPS], journaled[differs], attempts[differs], strict=False
    ):
        problems.add_file(f"has {lines} lines for frame {sequence}, which was sent {sent} times")
    for sequence in closed[(attempts > 0) & ~in_journal & (rows.lost == 0)][:_SHOWN_GAPS]:
        problems.add_file(f"has no line for frame {sequence}, which was sent")
    return problems.collected()


def _missing_hashes(manifest: Mapping[str, Any]) -> Iterator[str]:
    for name in ("source", "model") if manifest else ():
        facts = manifest.get(name)
        facts = facts if isinstance(facts, dict) else {}
        sha256 = facts.get("sha256")
        is_hash = isinstance(sha256, str) and len(sha256) == _SHA256_DIGITS and not sha256.strip("0123456789abcdef")
        if not is_hash and facts.get("kind") != "camera":  # The images of a camera are not stored and have no hash.
            yield f"{name}.sha256 is {sha256!r}, which is not a SHA-256: the {name} cannot be identified"


_COLUMN = "dispatch"


def check_dispatch(rows: LogRows, folder: Path) -> tuple[Problem, ...]:
    """Checks that exactly the frames that were sent through a broker have a dispatch.

    Logs of earlier versions have no such column.
    """
    if _COLUMN not in read_header(folder):
        return ()
    given, sent = ~rows.table.empty(_COLUMN), rows.numbers["attempts"].data > 0
    is_known = rows.table.one_of(_COLUMN, [*DISPATCHERS])
    found: list[Finding] = [
        (_COLUMN, given & ~is_known, f"is not one of {', '.join(DISPATCHERS)}"),
        (_COLUMN, given & ~sent, "is given, but the frame was not sent"),
    ]
    if (has_broker := _has_broker(rows)) is not None:
        what = "is empty, but the frame was sent" if has_broker else "is given, but the run had no broker"
        found.append((_COLUMN, sent & (given != has_broker), what))
    return ProblemCollector(folder / CSV_NAME).add_cells(rows.table.lines, found).collected()


def _has_broker(rows: LogRows) -> bool | None:
    """Returns whether the run had a broker; None if the manifest does not say."""
    configuration = rows.manifest.get("configuration")
    transport = configuration.get("transport") if isinstance(configuration, dict) else None
    entry = TRANSPORTS.get(transport) if isinstance(transport, str) else None
    return None if entry is None else entry.endpoint == "broker"
