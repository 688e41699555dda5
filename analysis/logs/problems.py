"""Problems found in the files of a run: each one names its file, row and column."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

Finding = tuple[str, npt.NDArray[np.bool_], str]  # A column, the rows whose cell does not fit, and what it is.

SHOWN_PER_KIND = 20  # A corrupt file can have a problem of the same kind in every cell.


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a run's file; `row` is the line number in the file, starting at 1 for the header."""

    file: Path
    row: int | None
    column: str | None
    what: str

    def __str__(self) -> str:
        row = "" if self.row is None else f", row {self.row}"
        column = "" if self.column is None else f", column {self.column}"
        return f"{self.file}{row}{column}: {self.what}"


class ProblemCollector:
    """Collects the problems of one file; keeps the first `SHOWN_PER_KIND` of each kind and counts the others."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._problems: list[Problem] = []
        self._counts: Counter[str] = Counter()

    def add_file(self, what: str) -> None:
        """Adds a problem of the whole file."""
        self._problems.append(Problem(self._file, None, None, what))

    def add_rows(
        self, kind: str, lines: npt.NDArray[np.int64], describe: str | Callable[[int], str], column: str | None = None
    ) -> None:
        """Adds one problem for each line number in `lines`.

        Args:
            kind: Plural noun for the kind of problem, used if there are too many to list.
            lines: Line numbers, shape (n,).
            describe: The description, or a function that returns it for an index into `lines`.
            column: Name of the affected column.
        """
        remaining = max(0, SHOWN_PER_KIND - self._counts[kind])
        self._counts[kind] += len(lines)
        self._problems += [
            Problem(self._file, int(line), column, describe if isinstance(describe, str) else describe(index))
            for index, line in enumerate(lines[:remaining])
        ]

    def add_cells(self, lines: npt.NDArray[np.int64], findings: Iterable[Finding]) -> Self:
        """Adds the cells that do not fit, of rows with these line numbers; returns itself."""
        for column, where, what in findings:
            self.add_rows(f"cells of {column} that do not fit", lines[where], what, column)
        return self

    def collected(self) -> tuple[Problem, ...]:
        """Returns the listed problems in the order found, then one count for each kind with more problems."""
        counted = tuple(
            Problem(self._file, None, None, f"{count - SHOWN_PER_KIND} more {kind}")
            for kind, count in self._counts.items()
            if count > SHOWN_PER_KIND
        )
        return (*self._problems, *counted)
