"""What holds of every frame's journey, to the nanosecond: its durations, their sums, and which crossings are resolved."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.logs.log_rows import LogRows
from bench.logs.problems import SHOWN, Problem, Problems
from bench.logs.text_table import Bools, Ints, Numbers
from shared.runlog.latency_log import Outcome, milliseconds
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage

_CLOCK = ("clock_offset_ms", "clock_error_ms")
_ANSWERER = ("model", "model_version", "worker", "worker_session", "attempts", "batch_size", "bytes_up", "bytes_down")
_SAYS_NOTHING = "is empty or 0, though the frame was answered"


def check_journeys(rows: LogRows, path: Path) -> dict[str, tuple[Problem, ...]]:
    """Hold all rows against what `shared.runlog.latency_log` promises of them; what is broken, by promise.

    `path`: the file to name. Cells that could not be read are left out here: they are told where they are read.
    """
    journeys = _Journeys(rows, path)
    return {
        "answered rows say who answered": journeys.answerers(),
        "durations are the stamps' differences": journeys.durations(),
        "total, cloud and crossing are their sums": journeys.sums(),
        "a second attempt is waited for within sent_ms": journeys.retries(),
        "uplink and downlink are the crossing, by the clock": journeys.one_way(),
        "what is resolved exceeds its clock error": journeys.resolved(),
    }


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a column should hold, in nanoseconds; nothing where it is not `known`."""

    whole: Ints
    known: Bools


class _Journeys:
    """The rows of a log, column by column."""

    def __init__(self, rows: LogRows, path: Path) -> None:
        self._rows = rows
        self._path = path
        # A row with a cell that could not be read is told already; what follows from that cell is not told again.
        self._readable = ~np.any([numbers.wrong for numbers in rows.numbers.values()], axis=0)

    def answerers(self) -> tuple[Problem, ...]:
        """An answered frame was sent, in so many bytes, and one worker answered it, in so many."""
        problems = Problems(self._path)
        table = self._rows.table
        answered = table.one_of("outcome", [Outcome.ANSWERED])
        for name in _ANSWERER:
            none = answered & self._readable & (table.empty(name) | table.one_of(name, ["0"]))
            lines = table.lines[none]
            problems.rows("answered rows that do not say who answered", lines, lambda _: _SAYS_NOTHING, name)
        return problems.all()

    def durations(self) -> tuple[Problem, ...]:
        """A stage lasts from the stamp before it, of the same node, to its own."""
        problems = Problems(self._path)
        for stages in (EDGE_STAGES, CLOUD_STAGES):
            last = self._stamp(stages[0])
            for stage in stages[1:]:
                stamp = self._stamp(stage)
                expected = _Expected(stamp.whole - last.whole, stamp.known & last.known)
                self._compare(problems, f"{stage}_ms", expected, "its stamps are {} ms apart")
                last = _Expected(np.where(stamp.known, stamp.whole, last.whole), stamp.known | last.known)
        return problems.all()

    def sums(self) -> tuple[Problem, ...]:
        """`total_ms` and `cloud_ms` are last minus first and the sum between; the crossing is the rest of the time away."""
        problems = Problems(self._path)
        for name, stages in (("total_ms", EDGE_STAGES), ("cloud_ms", CLOUD_STAGES)):
            first, last = self._stamp(stages[0]), self._stamp(stages[-1])
            spanned = _Expected(last.whole - first.whole, first.known & last.known)
            self._compare(problems, name, spanned, "its first and last stamps are {} ms apart")
            parts = [self._column(f"{stage}_ms") for stage in stages[1:]]
            summed = _Expected(_sum(parts), self._column(name).known & spanned.known)
            self._compare(problems, name, summed, "its stages sum to {} ms", only=summed.known)
        away, cloud = self._span(Stage.SENT, Stage.RETURNED), self._span(Stage.RECEIVED, Stage.REPLIED)
        crossing = _Expected(away.whole - cloud.whole, away.known & cloud.known)
        self._compare(problems, "crossing_ms", crossing, "time away less time in the cloud is {} ms")
        return problems.all()

    def retries(self) -> tuple[Problem, ...]:
        """The wait for a second attempt is a part of the time until it left, and none of a frame that was sent once."""
        problems = Problems(self._path)
        waited, sent = self._column("retry_wait_ms"), self._column("sent_ms")
        once = self._column("attempts").whole <= 1
        none = _Expected(np.zeros_like(waited.whole), waited.known)
        self._compare(
            problems, "retry_wait_ms", none, "a frame sent once waits {} ms for no other", only=once & waited.known
        )
        longer = self._readable & waited.known & sent.known & (waited.whole > sent.whole)
        lines = self._rows.table.lines[longer]
        problems.rows(
            "waits longer than sent_ms", lines, lambda _: "is more than sent_ms, of which it is a part", "retry_wait_ms"
        )
        return problems.all()

    def one_way(self) -> tuple[Problem, ...]:
        """Both ways sum to the crossing, and each is the stamps' difference, set right by the clock's offset."""
        problems = Problems(self._path)
        up, down, crossing, offset = (
            self._column(name) for name in ("uplink_ms", "downlink_ms", "crossing_ms", "clock_offset_ms")
        )
        for name in ("uplink_ms", "downlink_ms", *_CLOCK):
            column = self._column(name)
            self._compare(problems, name, _Expected(column.whole, up.known), "uplink_ms is given", values=False)
        both = _Expected(up.whole + down.whole, crossing.known & up.known & down.known)
        self._compare(problems, "crossing_ms", both, "uplink and downlink sum to {} ms", only=both.known)
        out = self._span(Stage.SENT, Stage.RECEIVED)
        corrected = _Expected(out.whole - offset.whole, out.known & offset.known & up.known)
        self._compare(problems, "uplink_ms", corrected, "its stamps, less the offset, are {} ms", only=corrected.known)
        return problems.all()

    def resolved(self) -> tuple[Problem, ...]:
        """1 where a crossing is larger than its clock error, else 0."""
        problems = Problems(self._path)
        error = self._column("clock_error_ms")
        for way in ("uplink", "downlink"):
            crossing = self._column(f"{way}_ms")
            is_larger = (crossing.whole > error.whole).astype(np.int64)
            expected = _Expected(is_larger, crossing.known & error.known)
            self._compare(problems, f"{way}_resolved", expected, f"it should be {{}}, by {way}_ms and clock_error_ms")
        return problems.all()

    def _column(self, name: str) -> Numbers:
        return self._rows.numbers[name]

    def _stamp(self, stage: Stage) -> _Expected:
        column = self._column(f"t_{stage}_ns")
        return _Expected(column.whole, column.known)

    def _span(self, first: Stage, last: Stage) -> _Expected:
        begun, ended = self._stamp(first), self._stamp(last)
        return _Expected(ended.whole - begun.whole, begun.known & ended.known)

    def _compare(
        self,
        problems: Problems,
        name: str,
        expected: _Expected,
        why: str,
        *,
        only: Bools | None = None,
        values: bool = True,
    ) -> None:
        """Tell where a column differs from what it should hold, in the rows of `only`, and in `values` or presence."""
        column = self._column(name)
        differs = column.known != expected.known
        if values:
            differs |= column.known & expected.known & (column.whole != expected.whole)
        differs &= self._readable if only is None else self._readable & only
        lines = self._rows.table.lines[differs]
        found, wanted = (_texts(name, cells, differs) for cells in (column, expected))

        def say(place: int) -> str:
            if not wanted[place]:
                return "is given, though what it follows from was not measured"
            return f"is {found[place] or 'empty'}, but {why.format(wanted[place])}"

        problems.rows(f"cells of {name} that contradict others", lines, say, name)


def _texts(name: str, cells: Numbers | _Expected, where: Bools) -> list[str]:
    """Cells as the log writes them, empty where there is nothing; only the first are ever shown."""
    shown = np.flatnonzero(where)[:SHOWN]
    text = milliseconds if name.endswith("_ms") else str
    return [text(int(cells.whole[place])) if cells.known[place] else "" for place in shown]


def _sum(columns: Sequence[Numbers]) -> Ints:
    total: Ints = np.sum([np.where(column.known, column.whole, 0) for column in columns], axis=0)
    return total
