"""Checks the rows of a latency log: results that the vehicle got without sending a frame, and all durations.

Durations are checked to the nanosecond against timestamps, sums and clock corrections.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.logs.log_rows import LogRows
from analysis.logs.problems import SHOWN_PER_KIND, Finding, Problem, ProblemCollector
from analysis.logs.text_table import Bools, IntegerColumn, Ints, KnownIntegers
from shared.runlog.columns import LATENCY
from shared.runlog.latency_log import WITH_RESULT, Outcome
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage

_OF_VEHICLE = (Outcome.REUSED, Outcome.ANSWERED_LOCALLY)
_OWN_RESULT = (Outcome.ANSWERED, Outcome.ANSWERED_LOCALLY)
_OWN_RESULT_ROW_LOST = tuple(f"row_lost: {outcome}" for outcome in _OWN_RESULT)  # Reasons that `repair` writes.
_NEEDED = {
    Outcome.REUSED: ("gate_distance", "reused_sequence", "t_gated_ns", "total_ms"),
    Outcome.ANSWERED_LOCALLY: ("t_inferred_locally_ns", "total_ms", "engine", "model_version"),
}
_MEASURED_IN = {"gate_distance": "t_gated_ns", "local_confidence": "t_inferred_locally_ns"}
_OF_SENT_FRAMES = ("t_sent_ns", "worker", "attempts", "batch_size", "bytes_up", "bytes_down")
_HIGHEST_CONFIDENCE = 1_000_000  # Decimals are read as millionths.


def results_of_vehicle(rows: LogRows) -> Bools:
    """Returns a mask of the frames for which the vehicle got a result, in time or late, without sending them."""
    return rows.table.empty("t_sent_ns") & rows.table.one_of("outcome", [*WITH_RESULT, Outcome.EXPIRED])


def last_stage_ns(rows: LogRows) -> Ints:
    """Returns the time of each frame's last stage at the vehicle, 0 if it has none."""
    stamps = [rows.numbers[f"t_{stage}_ns"] for stage in EDGE_STAGES]
    last_ns: Ints = np.max([np.where(stamp.known, stamp.data, 0) for stamp in stamps], axis=0)
    return last_ns


def check_results(rows: LogRows, path: Path) -> dict[str, tuple[Problem, ...]]:
    """Checks reused and local results; returns the problems of each check. `path` is the file named in the problems."""
    checks = {
        "reused and local results have their columns": _misplaced_cells(rows),
        "reused results are those of earlier frames of the camera": _wrong_sources(rows),
    }
    lines = rows.table.lines
    return {name: ProblemCollector(path).add_cells(lines, found).collected() for name, found in checks.items()}


def _misplaced_cells(rows: LogRows) -> Iterator[Finding]:
    """Yields the columns whose cells are missing, or should be empty, for the outcome of their rows."""
    table = rows.table
    for outcome, names in _NEEDED.items():
        of_outcome = table.one_of("outcome", [outcome])
        for name in names:
            yield name, of_outcome & table.empty(name), f"is empty, but the frame is {outcome}"
    configuration = rows.manifest.get("configuration")
    if isinstance(configuration, dict) and configuration.get("cascade") is True:
        # Without a cascade, the local model need not have a confidence.
        unsure = table.one_of("outcome", [Outcome.ANSWERED_LOCALLY]) & table.empty("local_confidence")
        yield "local_confidence", unsure, "is empty, but the cascade accepted the frame"
    of_vehicle = table.one_of("outcome", _OF_VEHICLE)
    for name in _OF_SENT_FRAMES:
        given = ~(table.empty(name) | table.one_of(name, ["0"]))
        yield name, of_vehicle & given, "is given, but the frame was not sent"
    for name, stamp in _MEASURED_IN.items():
        yield name, ~table.empty(name) & table.empty(stamp), f"is given, but {stamp} is empty"
    too_high = rows.numbers["local_confidence"].data > _HIGHEST_CONFIDENCE
    yield "local_confidence", too_high, "is more than 1"
    misplaced = ~table.empty("reused_sequence") & ~_may_be_reused(rows)
    yield "reused_sequence", misplaced, "is given, but the frame did not get the result of another"


def _wrong_sources(rows: LogRows) -> Iterator[Finding]:
    """Yields the reused results that do not belong to an earlier frame of the camera, or did not exist in time."""
    sequences, named, gated = (rows.numbers[name] for name in ("sequence", "reused_sequence", "t_gated_ns"))
    reused = named.known & _may_be_reused(rows)
    source, has_row = positions(sequences.data, named)
    if rows.lost:  # The row of the other frame may be lost.
        reused &= has_row
    cameras = rows.table.series("camera").to_numpy()
    # The row of a result may be lost, but not its outcome.
    is_lost = rows.table.one_of("reason", _OWN_RESULT_ROW_LOST)
    has_own_result = rows.table.one_of("outcome", _OWN_RESULT) | is_lost
    yield from first_conditions(
        "reused_sequence",
        reused,
        {
            "is not the number of an earlier frame": named.data >= sequences.data,
            "is the number of a frame without a row": ~has_row,
            "is the number of a frame of another camera": cameras[source] != cameras,
            "is the number of a frame without a result of its own": ~has_own_result[source],
            "is the number of a frame whose result came later": gated.known
            & (last_stage_ns(rows)[source] > gated.data),
        },
    )


def _may_be_reused(rows: LogRows) -> Bools:
    """Returns a mask of the reused frames, in time or late."""
    return results_of_vehicle(rows) & rows.table.one_of("outcome", [Outcome.REUSED, Outcome.EXPIRED])


def positions(sequences: Ints, wanted: IntegerColumn) -> tuple[Ints, Bools]:
    """Returns the row of each wanted frame, 0 where there is none, and a mask of those that have one."""
    rows: Ints = pd.Index(sequences).get_indexer(pd.Index(wanted.data))
    found = wanted.known & (rows >= 0)
    return np.where(found, rows, 0), found


def first_conditions(column: str, of: Bools, conditions: Mapping[str, Bools]) -> Iterator[Finding]:
    """Yields the rows of `of` with the first condition that holds for each of them, in the order of the conditions."""
    what = np.select(list(conditions.values()), list(conditions), default="")
    yield from ((column, of & (what == text), text) for text in conditions)


_CLOCK = ("clock_offset_ms", "clock_error_ms")
_REPLY_COLUMNS = (
    "model", "model_version", "worker", "worker_session", "attempts", "batch_size", "bytes_up", "bytes_down",
)  # fmt: skip
_EMPTY = "is empty or 0, but the frame was answered"


def check_timing(rows: LogRows, path: Path) -> dict[str, tuple[Problem, ...]]:
    """Checks all rows against the rules of `shared.runlog.latency_log`; returns the problems of each check.

    `path` is the file named in the problems. Rows with an unreadable cell are left out, as `log_rows` reports them.
    """
    checks = _TimingChecks(rows)
    by_name = {
        "answered rows name their worker and model": checks.replies,
        "durations are the differences of timestamps": checks.durations,
        "total, cloud and crossing agree with their stages": checks.sums,
        "retry_wait_ms is part of sent_ms": checks.retries,
        "uplink and downlink agree with crossing and clock offset": checks.one_way,
        "resolved uplinks and downlinks exceed the clock error": checks.resolved,
    }
    collectors = {name: ProblemCollector(path) for name in by_name}
    for name, check in by_name.items():
        check(collectors[name])
    return {name: collector.collected() for name, collector in collectors.items()}


class _TimingChecks:
    """Checks the columns of a log."""

    def __init__(self, rows: LogRows) -> None:
        self._rows = rows
        # An unreadable cell is a problem of its own; the other checks skip its row.
        self._readable = ~np.any([numbers.invalid for numbers in rows.numbers.values()], axis=0)

    def replies(self, problems: ProblemCollector) -> None:
        """Checks that answered rows have a worker, a model, a number of attempts and sizes."""
        table = self._rows.table
        answered = table.one_of("outcome", [Outcome.ANSWERED])
        for name in _REPLY_COLUMNS:
            missing = answered & self._readable & (table.empty(name) | table.one_of(name, ["0"]))
            problems.add_rows("answered rows without worker or model", table.lines[missing], _EMPTY, name)

    def durations(self, problems: ProblemCollector) -> None:
        """Checks that a stage lasts from the previous timestamp of its node to its own."""
        for stages in (EDGE_STAGES, CLOUD_STAGES):
            last = self._timestamps(stages[0])
            for stage in stages[1:]:
                stamp = self._timestamps(stage)
                expected = KnownIntegers(stamp.data - last.data, stamp.known & last.known)
                self._compare(problems, f"{stage}_ms", expected, "its timestamps are {} ms apart")
                last = KnownIntegers(np.where(stamp.known, stamp.data, last.data), stamp.known | last.known)

    def sums(self, problems: ProblemCollector) -> None:
        """Checks total and cloud time against timestamps and stages, and the crossing against the time away minus the cloud time."""
        cloud = self._span(Stage.RECEIVED, Stage.REPLIED)
        for name, stages, span in (
            ("total_ms", EDGE_STAGES, self._until_result()),
            ("cloud_ms", CLOUD_STAGES, cloud),
        ):
            self._compare(problems, name, span, "its first and last timestamps are {} ms apart")
            parts = [self._column(f"{stage}_ms") for stage in stages[1:]]
            summed = KnownIntegers(_sum(parts), self._column(name).known & span.known)
            self._compare(problems, name, summed, "its stages sum to {} ms", only=summed.known)
        away = self._span(Stage.SENT, Stage.RETURNED)
        crossing = KnownIntegers(away.data - cloud.data, away.known & cloud.known)
        self._compare(problems, "crossing_ms", crossing, "time away minus time in the cloud is {} ms")

    def retries(self, problems: ProblemCollector) -> None:
        """Checks that the wait for a retry is part of sent_ms, and 0 for a frame that was sent once."""
        waited, sent = self._column("retry_wait_ms"), self._column("sent_ms")
        once = self._column("attempts").data <= 1
        zero = KnownIntegers(np.zeros_like(waited.data), waited.known)
        why = "a frame that was sent once waits {} ms for a retry"
        self._compare(problems, "retry_wait_ms", zero, why, only=once & waited.known)
        longer = self._readable & waited.known & sent.known & (waited.data > sent.data)
        lines = self._rows.table.lines[longer]
        problems.add_rows(
            "waits longer than sent_ms", lines, "is more than sent_ms, of which it is a part", "retry_wait_ms"
        )

    def one_way(self, problems: ProblemCollector) -> None:
        """Checks that uplink and downlink sum to the crossing, and the uplink against the corrected timestamps."""
        up, down, crossing, offset = (
            self._column(name) for name in ("uplink_ms", "downlink_ms", "crossing_ms", "clock_offset_ms")
        )
        for name in ("uplink_ms", "downlink_ms", *_CLOCK):
            column = self._column(name)
            expected = KnownIntegers(column.data, up.known)
            self._compare(problems, name, expected, "uplink_ms is given", compare_values=False)
        both = KnownIntegers(up.data + down.data, crossing.known & up.known & down.known)
        self._compare(problems, "crossing_ms", both, "uplink and downlink sum to {} ms", only=both.known)
        out = self._span(Stage.SENT, Stage.RECEIVED)
        corrected = KnownIntegers(out.data - offset.data, out.known & offset.known & up.known)
        why = "its timestamps minus the clock offset are {} ms"
        self._compare(problems, "uplink_ms", corrected, why, only=corrected.known)

    def resolved(self, problems: ProblemCollector) -> None:
        """Checks that `…_resolved` is 1 exactly if that one-way time is larger than the clock error."""
        error = self._column("clock_error_ms")
        for direction in ("uplink", "downlink"):
            crossing = self._column(f"{direction}_ms")
            is_larger = (crossing.data > error.data).astype(np.int64)
            expected = KnownIntegers(is_larger, crossing.known & error.known)
            why = f"{direction}_ms and clock_error_ms give {{}}"
            self._compare(problems, f"{direction}_resolved", expected, why)

    def _column(self, name: str) -> IntegerColumn:
        return self._rows.numbers[name]

    def _timestamps(self, stage: Stage) -> KnownIntegers:
        return self._column(f"t_{stage}_ns")

    def _span(self, first: Stage, last: Stage) -> KnownIntegers:
        begin, end = self._timestamps(first), self._timestamps(last)
        return KnownIntegers(end.data - begin.data, begin.known & end.known)

    def _until_result(self) -> KnownIntegers:
        """Returns the time from due to the result, which a worker sent or the vehicle got without sending the frame."""
        due, decoded = self._timestamps(Stage.DUE), self._timestamps(Stage.MASK_DECODED)
        end_ns = np.where(decoded.known, decoded.data, last_stage_ns(self._rows))
        return KnownIntegers(end_ns - due.data, due.known & (decoded.known | results_of_vehicle(self._rows)))

    def _compare(
        self,
        problems: ProblemCollector,
        name: str,
        expected: KnownIntegers,
        why: str,
        *,
        only: Bools | None = None,
        compare_values: bool = True,
    ) -> None:
        """Reports cells that differ from `expected` in presence or, with `compare_values`, in value.

        `why` is a format string for the expected value; `only` restricts the rows.
        """
        column = self._column(name)
        differs = column.known != expected.known
        if compare_values:
            differs |= column.known & expected.known & (column.data != expected.data)
        differs &= self._readable if only is None else self._readable & only
        found, wanted = (_texts(name, cells, differs) for cells in (column, expected))

        def describe(index: int) -> str:
            if not wanted[index]:
                return "is given, but it depends on values that were not measured"
            return f"is {found[index] or 'empty'}, but {why.format(wanted[index])}"

        problems.add_rows(f"contradictory cells of {name}", self._rows.table.lines[differs], describe, name)


def _texts(name: str, cells: KnownIntegers, where: Bools) -> list[str]:
    """Formats the first selected cells as the log does; unknown cells become empty strings."""
    shown = np.flatnonzero(where)[:SHOWN_PER_KIND]
    text = LATENCY[name].text
    return [text(int(cells.data[row])) if cells.known[row] else "" for row in shown]


def _sum(columns: Sequence[IntegerColumn]) -> Ints:
    total: Ints = np.sum([np.where(column.known, column.data, 0) for column in columns], axis=0)
    return total
