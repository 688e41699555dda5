"""What a report is made of, before it becomes HTML, CSV, Markdown, LaTeX or a picture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bench.statistics.description import IntervalEstimate

Trace = dict[str, Any]  # As Plotly takes it.
CellValue = str | int | float | IntervalEstimate | None  # None, and nan: was not measured.
TableRow = tuple[CellValue, ...]


class ColumnKind(StrEnum):
    """What stands in a column."""

    TEXT = "text"
    NUMBER = "number"
    STAGE = "stage"  # The name of a stage, which is shown beside its colour.


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `digits`: decimals, where four significant figures are not what is wanted."""

    heading: str
    kind: ColumnKind = ColumnKind.NUMBER
    digits: int | None = None


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table. `name` is the name of its files; `caption` says what it shows and in which unit."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.name


@dataclass(frozen=True, slots=True)
class Toggle:
    """A button of a chart and what it changes: `traces` by attribute as Plotly restyles them, `layout` likewise."""

    label: str
    traces: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure. `name` is the name of its files; `caption` tells, in words and numbers, what one sees.

    `traces` and `layout` are Plotly's, laid over the house's own layout. Every axis has a title with its unit. Of
    `toggles` the first is what is drawn.
    """

    name: str
    caption: str
    traces: tuple[Trace, ...]
    layout: Mapping[str, Any]
    height: int = 380
    toggles: tuple[Toggle, ...] = ()


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Caution:
    """A paragraph that must not be overlooked."""

    text: str


@dataclass(frozen=True, slots=True)
class FrameList:
    """Frames that can be opened: `rows` are places in the report's frames; each with its line of text."""

    heading: str
    frames: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class CollapsedTable:
    """A table that is opened by whoever wants it; `told` says what is in it."""

    told: str
    table: ReportTable


ChapterPart = CollapsedTable | Paragraph | Caution | ReportTable | Chart | FrameList


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of a report; `anchor` is its address on the page."""

    anchor: str
    title: str
    parts: tuple[ChapterPart, ...]


@dataclass(frozen=True, slots=True)
class ReportContent:
    """A report: its title, one sentence that says it all, and the rest."""

    title: str
    verdict: str
    sections: tuple[Chapter, ...]
    frames: Mapping[str, Any] = field(default_factory=dict)  # What the page needs to open a frame: see `details`.

    def tables(self) -> Iterator[ReportTable]:
        """Every table, in reading order."""
        for section in self.sections:
            for part in section.parts:
                if isinstance(part, CollapsedTable | ReportTable):
                    yield part.table if isinstance(part, CollapsedTable) else part

    def charts(self) -> Iterator[Chart]:
        """Every figure, in reading order."""
        return (part for section in self.sections for part in section.parts if isinstance(part, Chart))


def text_columns(*headings: str) -> tuple[Column, ...]:
    """Columns of text."""
    return tuple(Column(heading, ColumnKind.TEXT) for heading in headings)


def number_columns(*headings: str) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(heading) for heading in headings)


def join_words(parts: Sequence[str]) -> str:
    """Words in a row: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
