"""Checks the log of a presenter's outputs (`presented.csv`) against the latency log and the manifest.

Every frame has one tick, with an output or the reason for none; ages, sources and counts agree.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.logs.log_rows import LogRows
from analysis.logs.problems import Finding, Problem, ProblemCollector
from analysis.logs.row_checks import first_conditions, last_stage_ns, positions
from analysis.logs.text_table import Ints, TextTable, read_table
from edge.presenting.flow import FlowSize
from shared.runlog.columns import PRESENTED, TEXTS
from shared.runlog.latency_log import CSV_NAME, WITH_RESULT, LogError, Outcome
from shared.runlog.presented_log import ABORTED, COLUMNS, PRESENTED_NAME, OutputOrigin
from shared.runlog.run_manifest import MANIFEST_NAME

LINES, TICKS, ORIGINS, AGES, SOURCES, COUNTS = (
    "every line of the log of outputs is a tick of this run",
    "every frame has one tick",
    "every tick has an output or a reason",
    "ages are the differences of due times",
    "presented results had arrived",
    "presented ticks are counted in the manifest",
)
_OF_FRAME = {"camera": "camera", "frame_index": "frame_index", "frame_stamp_ns": "frame_stamp_ns", "due_ns": "t_due_ns"}
_WITH_SOURCE = (OutputOrigin.REMOTE, OutputOrigin.WARPED, OutputOrigin.FUSED)
_FLOWS = ("", *FlowSize)
_SHOWN = 20
_MAY_HAVE_RESULT = (*WITH_RESULT, Outcome.ABORTED)  # A result may have arrived just before the vehicle node died.


def has_presenter(rows: LogRows, folder: Path) -> bool:
    """Returns whether a run had a presenter, by its manifest or its files."""
    return "presenting" in rows.manifest or (folder / PRESENTED_NAME).exists()


def check_presented(rows: LogRows, folder: Path) -> tuple[int, dict[str, tuple[Problem, ...]]]:
    """Checks the log of outputs of a run; returns the number of its rows, and the problems of each check."""
    problems = ProblemCollector(folder / PRESENTED_NAME)
    try:
        table = read_table(folder / PRESENTED_NAME, problems)
    except LogError as error:
        problems.add_file(str(error).removeprefix(f"{folder / PRESENTED_NAME}, ").split(": ")[0])
        return 0, {LINES: problems.collected()}
    missing = [name for name in COLUMNS if name not in table.names]
    if missing:
        problems.add_file(f"row 1 has no column {', '.join(missing)}: its checks are skipped")
        return 0, {LINES: problems.collected()}
    table = _ticks_of_run(table, rows, problems)
    if len(table) and not len(rows.table):
        problems.add_file(f"has {len(table)} ticks, but {CSV_NAME} has no row: they are not compared")
        return 0, {LINES: problems.collected()}
    checks = _PresentedChecks(rows, table, folder)
    checks.report_unreadable(problems)
    cells = {ORIGINS: checks.origins(), AGES: checks.ages(), SOURCES: checks.sources()}
    return len(table), {
        LINES: problems.collected(),
        TICKS: checks.ticks(),
        **{
            name: ProblemCollector(folder / PRESENTED_NAME).add_cells(table.lines, found).collected()
            for name, found in cells.items()
        },
        COUNTS: checks.counts(),
    }


def _ticks_of_run(table: TextTable, rows: LogRows, problems: ProblemCollector) -> TextTable:
    """Returns the rows of this run that have a number."""
    unnumbered = ~table.integers("tick").known
    foreign = ~unnumbered & ~table.one_of("session", [rows.session])
    problems.add_rows("rows without a tick", table.lines[unnumbered], "is not an integer: the row is skipped", "tick")
    problems.add_rows(
        "rows of other runs", table.lines[foreign], "is that of another run: the row is skipped", "session"
    )
    return table.where(~unnumbered & ~foreign)


class _PresentedChecks:
    """Checks the columns of the log of outputs. A cell that is unreadable is reported once, and not compared."""

    def __init__(self, rows: LogRows, table: TextTable, folder: Path) -> None:
        self._rows = rows
        self._table = table
        self._lines = table.lines
        self._path = folder / PRESENTED_NAME
        self._manifest_path = folder / MANIFEST_NAME
        self._numbers = {name: table.numbers(each) for name, each in PRESENTED.items() if each.kind not in TEXTS}
        self._frame, self._has_frame = positions(rows.numbers["sequence"].data, self._numbers["tick"])
        self._source, self._has_source = positions(rows.numbers["sequence"].data, self._numbers["source_sequence"])

    def report_unreadable(self, problems: ProblemCollector) -> None:
        """Reports cells that are not numbers, and texts that are none of those that a presenter writes."""
        bad = {name: numbers.invalid for name, numbers in self._numbers.items()}
        bad["origin"] = ~self._table.one_of("origin", [*OutputOrigin])
        bad["flow"] = ~self._table.one_of("flow", _FLOWS)
        for name, where in bad.items():
            rows = np.flatnonzero(where)

            def describe(index: int, name: str = name, rows: Ints = rows) -> str:
                return f"{self._table.cell(name, int(rows[index]))[:_SHOWN]!r} is no value of this column"

            problems.add_rows("cells with other values", self._table.lines[where], describe, name)

    def ticks(self) -> tuple[Problem, ...]:
        """Checks that every frame of the latency log has exactly one tick, with the same camera, index and times."""
        problems = ProblemCollector(self._path)
        ticks = self._numbers["tick"].data
        repeated = pd.Series(ticks).duplicated().to_numpy()
        problems.add_cells(self._lines, [("tick", repeated, f"is that of an earlier row of {PRESENTED_NAME}")])
        if not self._rows.lost:
            problems.add_cells(self._lines, [("tick", ~self._has_frame, f"is no frame of {CSV_NAME}")])
        sequences = self._rows.numbers["sequence"].data
        absent = np.sort(sequences[~np.isin(sequences, ticks)])
        absent = absent[: 0 if len(absent) <= self._lost() else None]
        for sequence in absent[:_SHOWN]:
            problems.add_file(f"frame {sequence} has no tick")
        if len(absent) > _SHOWN:
            problems.add_file(f"{len(absent) - _SHOWN} more frames have no tick")
        return problems.add_cells(self._lines, self._differing_cells()).collected()

    def _differing_cells(self) -> Iterator[Finding]:
        for name, column in _OF_FRAME.items():
            here, there = self._texts(name), self._rows.table.series(column).to_numpy(object)[self._frame]
            both = self._has_frame & (here != "") & (there != "")
            yield name, both & (here != there), f"is not {column} of its frame in {CSV_NAME}"

    def origins(self) -> Iterator[Finding]:
        """Checks that a tick has an output or a reason, and the columns that go with it."""
        table, numbers = self._table, self._numbers
        has_output = table.one_of("origin", [origin for origin in OutputOrigin if origin is not OutputOrigin.NONE])
        is_none = table.one_of("origin", [OutputOrigin.NONE])
        yield "reason", is_none & table.empty("reason"), "is empty, but there is no output"
        yield "reason", has_output & ~table.empty("reason"), "is given, but there is an output"
        for name in ("age_ns", "presented_ns", "processing_ms"):
            yield name, has_output & table.empty(name), "is empty, but there is an output"
        of_result = table.one_of("origin", [*_WITH_SOURCE])
        yield "source_sequence", of_result & table.empty("source_sequence"), "is empty, but a result is shown"
        for name in ("source_sequence", "age_ns"):
            yield name, is_none & ~table.empty(name), "is given, but there is no output"
        aborted = table.one_of("reason", [ABORTED])
        yield "presented_ns", ~aborted & table.empty("presented_ns"), "is empty, but the run went on"
        due, presented = numbers["due_ns"], numbers["presented_ns"]
        yield "presented_ns", due.known & presented.known & (presented.data < due.data), "is before due_ns"

    def ages(self) -> Iterator[Finding]:
        """Checks that the age is the due time of the tick minus that of the frame whose result is presented."""
        age, due, source_due = self._numbers["age_ns"], self._numbers["due_ns"], self._rows.numbers["t_due_ns"]
        known = age.known & due.known & self._has_source & source_due.known[self._source]
        differs = known & (age.data != due.data - source_due.data[self._source])
        yield "age_ns", differs, "is not due_ns minus that of the frame source_sequence"
        of_now = age.known & self._table.one_of("origin", [OutputOrigin.LOCAL]) & self._table.empty("source_sequence")
        yield "age_ns", of_now & (age.data != 0), "is not 0, but the result is of the tick's own frame"
        yield "age_ns", age.known & (age.data < 0), "is negative"

    def sources(self) -> Iterator[Finding]:
        """Checks that the presented result is of an earlier frame, of the same camera, and had arrived by then."""
        named, presented = self._numbers["source_sequence"], self._numbers["presented_ns"]
        cameras = self._rows.table.series("camera").to_numpy(object)
        got_one = self._rows.table.one_of("outcome", [*_MAY_HAVE_RESULT])[self._source]
        result_ns = last_stage_ns(self._rows)[self._source]
        with_result = self._rows.table.one_of("outcome", [*WITH_RESULT])[self._source]
        conditions = {
            f"is the number of no frame of {CSV_NAME}": ~self._has_source & (self._rows.lost == 0),
            "is the number of a later frame": named.data > self._numbers["tick"].data,
            "is the number of a frame of another camera": self._texts("camera") != cameras[self._source],
            "is the number of a frame without a result": self._has_source & ~got_one,
            "is the number of a frame whose result came later": with_result
            & presented.known
            & (result_ns > presented.data),
        }
        return first_conditions("source_sequence", named.known, conditions)

    def counts(self) -> tuple[Problem, ...]:
        """Checks the manifest's counts of ticks."""
        problems = ProblemCollector(self._manifest_path)
        presenting = self._rows.manifest.get("presenting")
        if not self._rows.manifest or self._rows.manifest.get("state") == "running":
            return ()  # Other checks report that.
        if not isinstance(presenting, dict):
            problems.add_file(f"has no section 'presenting', but there is {PRESENTED_NAME}")
            return problems.collected()
        if (lost := presenting.get("rows_lost")) and not self._lost():
            problems.add_file(f"presenting.rows_lost is {lost!r}: {PRESENTED_NAME} is not complete")
        if self._lost() and not self._rows.lost:  # `audit` reports what a full disk lost of both logs in one sentence.
            problems.add_file(
                f"the disk was full: {lost:,} rows of {PRESENTED_NAME} were not written, as the run counted"
            )
        counted = presenting.get("ticks")
        counted = counted if isinstance(counted, Mapping) else {}
        for origin in OutputOrigin:
            count = int(self._table.one_of("origin", [origin]).sum())
            absent = counted.get(origin.value, 0) - count
            if absent and not 0 < absent <= self._lost():
                problems.add_file(
                    f"presenting.ticks.{origin} is {counted.get(origin.value)!r}, but {PRESENTED_NAME} has {count}"
                )
        return problems.collected()

    def _lost(self) -> int:
        """Returns the number of rows that a full disk lost and the run counted; 0 if the other rows do not agree."""
        read, presenting = self._rows.manifest.get("frames_read"), self._rows.manifest.get("presenting")
        lost = presenting.get("rows_lost") if isinstance(presenting, Mapping) else None
        agrees = isinstance(read, int) and isinstance(lost, int) and read - lost == len(self._table)
        return lost if agrees and isinstance(lost, int) else 0

    def _texts(self, name: str) -> npt.NDArray[np.object_]:
        texts: npt.NDArray[np.object_] = self._table.series(name).to_numpy(object)
        return texts
