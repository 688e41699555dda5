"""Checks the durations of every frame to the nanosecond against its timestamps, sums and clock corrections."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.logs.log_rows import LogRows
from analysis.logs.problems import SHOWN_PER_KIND, Problem, ProblemCollector
from analysis.logs.result_checks import last_stage_ns, results_of_vehicle
from analysis.logs.text_table import Bools, IntegerColumn, Ints
from shared.runlog.latency_log import Outcome, milliseconds
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage

_CLOCK = ("clock_offset_ms", "clock_error_ms")
_REPLY_COLUMNS = (
    "model", "model_version", "worker", "worker_session", "attempts", "batch_size", "bytes_up", "bytes_down",
)  # fmt: skip
_EMPTY = "is empty or 0, but the frame was answered"


def check_timing(rows: LogRows, path: Path) -> dict[str, tuple[Problem, ...]]:
    """Checks all rows against the rules of `shared.runlog.latency_log`; returns the problems of each check.

    `path` is the file named in the problems. Unreadable cells are ignored here because `log_rows` reports them.
    """
    checks = _TimingChecks(rows, path)
    return {
        "answered rows name their worker and model": checks.replies(),
        "durations are the differences of timestamps": checks.durations(),
        "total, cloud and crossing agree with their stages": checks.sums(),
        "retry_wait_ms is part of sent_ms": checks.retries(),
        "uplink and downlink agree with crossing and clock offset": checks.one_way(),
        "resolved uplinks and downlinks exceed the clock error": checks.resolved(),
    }


@dataclass(frozen=True, slots=True)
class _Expected:
    """Expected values of a column in nanoseconds; cells that are not `known` must be empty."""

    data: Ints
    known: Bools


class _TimingChecks:
    """Checks the columns of a log."""

    def __init__(self, rows: LogRows, path: Path) -> None:
        self._rows = rows
        self._path = path
        # An unreadable cell is a problem of its own; the other checks skip its row.
        self._readable = ~np.any([numbers.invalid for numbers in rows.numbers.values()], axis=0)

    def replies(self) -> tuple[Problem, ...]:
        """Checks that answered rows have a worker, a model, a number of attempts and sizes."""
        problems = ProblemCollector(self._path)
        table = self._rows.table
        answered = table.one_of("outcome", [Outcome.ANSWERED])
        for name in _REPLY_COLUMNS:
            missing = answered & self._readable & (table.empty(name) | table.one_of(name, ["0"]))
            problems.add_rows("answered rows without worker or model", table.lines[missing], lambda _: _EMPTY, name)
        return problems.collected()

    def durations(self) -> tuple[Problem, ...]:
        """Checks that a stage lasts from the previous timestamp of its node to its own."""
        problems = ProblemCollector(self._path)
        for stages in (EDGE_STAGES, CLOUD_STAGES):
            last = self._timestamps(stages[0])
            for stage in stages[1:]:
                stamp = self._timestamps(stage)
                expected = _Expected(stamp.data - last.data, stamp.known & last.known)
                self._compare(problems, f"{stage}_ms", expected, "its timestamps are {} ms apart")
                last = _Expected(np.where(stamp.known, stamp.data, last.data), stamp.known | last.known)
        return problems.collected()

    def sums(self) -> tuple[Problem, ...]:
        """Checks total and cloud time against timestamps and stages, and the crossing against the time away minus the cloud time."""
        problems = ProblemCollector(self._path)
        cloud = self._span(Stage.RECEIVED, Stage.REPLIED)
        for name, stages, span in (
            ("total_ms", EDGE_STAGES, self._until_result()),
            ("cloud_ms", CLOUD_STAGES, cloud),
        ):
            self._compare(problems, name, span, "its first and last timestamps are {} ms apart")
            parts = [self._column(f"{stage}_ms") for stage in stages[1:]]
            summed = _Expected(_sum(parts), self._column(name).known & span.known)
            self._compare(problems, name, summed, "its stages sum to {} ms", only=summed.known)
        away = self._span(Stage.SENT, Stage.RETURNED)
        crossing = _Expected(away.data - cloud.data, away.known & cloud.known)
        self._compare(problems, "crossing_ms", crossing, "time away minus time in the cloud is {} ms")
        return problems.collected()

    def retries(self) -> tuple[Problem, ...]:
        """Checks that the wait for a retry is part of sent_ms, and 0 for a frame that was sent once."""
        problems = ProblemCollector(self._path)
        waited, sent = self._column("retry_wait_ms"), self._column("sent_ms")
        once = self._column("attempts").data <= 1
        zero = _Expected(np.zeros_like(waited.data), waited.known)
        why = "a frame that was sent once waits {} ms for a retry"
        self._compare(problems, "retry_wait_ms", zero, why, only=once & waited.known)
        longer = self._readable & waited.known & sent.known & (waited.data > sent.data)
        lines = self._rows.table.lines[longer]
        problems.add_rows(
            "waits longer than sent_ms", lines, lambda _: "is more than sent_ms, of which it is a part", "retry_wait_ms"
        )
        return problems.collected()

    def one_way(self) -> tuple[Problem, ...]:
        """Checks that uplink and downlink sum to the crossing, and the uplink against the corrected timestamps."""
        problems = ProblemCollector(self._path)
        up, down, crossing, offset = (
            self._column(name) for name in ("uplink_ms", "downlink_ms", "crossing_ms", "clock_offset_ms")
        )
        for name in ("uplink_ms", "downlink_ms", *_CLOCK):
            column = self._column(name)
            expected = _Expected(column.data, up.known)
            self._compare(problems, name, expected, "uplink_ms is given", compare_values=False)
        both = _Expected(up.data + down.data, crossing.known & up.known & down.known)
        self._compare(problems, "crossing_ms", both, "uplink and downlink sum to {} ms", only=both.known)
        out = self._span(Stage.SENT, Stage.RECEIVED)
        corrected = _Expected(out.data - offset.data, out.known & offset.known & up.known)
        why = "its timestamps minus the clock offset are {} ms"
        self._compare(problems, "uplink_ms", corrected, why, only=corrected.known)
        return problems.collected()

    def resolved(self) -> tuple[Problem, ...]:
        """Checks that `…_resolved` is 1 exactly if that one-way time is larger than the clock error."""
        problems = ProblemCollector(self._path)
        error = self._column("clock_error_ms")
        for direction in ("uplink", "downlink"):
            crossing = self._column(f"{direction}_ms")
            is_larger = (crossing.data > error.data).astype(np.int64)
            expected = _Expected(is_larger, crossing.known & error.known)
            why = f"{direction}_ms and clock_error_ms give {{}}"
            self._compare(problems, f"{direction}_resolved", expected, why)
        return problems.collected()

    def _column(self, name: str) -> IntegerColumn:
        return self._rows.numbers[name]

    def _timestamps(self, stage: Stage) -> _Expected:
        column = self._column(f"t_{stage}_ns")
        return _Expected(column.data, column.known)

    def _span(self, first: Stage, last: Stage) -> _Expected:
        begin, end = self._timestamps(first), self._timestamps(last)
        return _Expected(end.data - begin.data, begin.known & end.known)

    def _until_result(self) -> _Expected:
        """Returns the time from due to the result, which a worker sent or the vehicle got without sending the frame."""
        due, decoded = self._timestamps(Stage.DUE), self._timestamps(Stage.MASK_DECODED)
        end_ns = np.where(decoded.known, decoded.data, last_stage_ns(self._rows))
        return _Expected(end_ns - due.data, due.known & (decoded.known | results_of_vehicle(self._rows)))

    def _compare(
        self,
        problems: ProblemCollector,
        name: str,
        expected: _Expected,
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


def _texts(name: str, cells: IntegerColumn | _Expected, where: Bools) -> list[str]:
    """Formats the first selected cells as the log does; unknown cells become empty strings."""
    shown = np.flatnonzero(where)[:SHOWN_PER_KIND]
    text = milliseconds if name.endswith("_ms") else str
    return [text(int(cells.data[row])) if cells.known[row] else "" for row in shown]


def _sum(columns: Sequence[IntegerColumn]) -> Ints:
    total: Ints = np.sum([np.where(column.known, column.data, 0) for column in columns], axis=0)
    return total
