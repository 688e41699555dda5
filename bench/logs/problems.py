"""What could not be read of a run, or does not hold in it: named by file, row and column, and never too much of it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

SHOWN_PER_KIND = 20  # Of a kind; a file of garbage has one for every cell.


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a run. `row`: the number of the line in the file, from 1, the header included."""

    file: Path
    row: int | None
    column: str | None
    what: str

    def __str__(self) -> str:
        row = "" if self.row is None else f", row {self.row}"
        column = "" if self.column is None else f", column {self.column}"
        return f"{self.file}{row}{column}: {self.what}"


class ProblemCollector:
    """Collects problems; of a kind the first `SHOWN` are kept and the rest are counted."""

    def __init__(self, file: Path) -> None:
        """`file` is what the problems are found in."""
        self._file = file
        self._problems: list[Problem] = []
        self._kinds: Counter[str] = Counter()

    def whole(self, what: str) -> None:
        """Something is wrong with the file, not with a row of it."""
        self._problems.append(Problem(self._file, None, None, what))

    def rows(
        self, kind: str, lines: npt.NDArray[np.int64], say: Callable[[int], str], column: str | None = None
    ) -> None:
        """Something is wrong in the rows of these line numbers.

        `kind`: what is wrong, in the plural, for those that are only counted; `say`: what is wrong with the row at a
        place in `lines`.
        """
        room = max(0, SHOWN_PER_KIND - self._kinds[kind])
        self._kinds[kind] += len(lines)
        self._problems += [
            Problem(self._file, int(line), column, say(place)) for place, line in enumerate(lines[:room])
        ]

    def all(self) -> tuple[Problem, ...]:
        """The problems as they were found, then how many more there are of the kinds that are too many."""
        counted = tuple(
            Problem(self._file, None, None, f"{count - SHOWN_PER_KIND} more {kind}")
            for kind, count in self._kinds.items()
            if count > SHOWN_PER_KIND
        )
        return (*self._problems, *counted)
