"""The content of a report, independent of its output format (HTML, CSV, Markdown, LaTeX or terminal)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.statistics.description import IntervalEstimate

Trace = dict[str, Any]  # A trace of a Plotly figure.
CellValue = str | int | float | IntervalEstimate | None  # None and NaN mean "not measured".
TableRow = tuple[CellValue, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    heading: str
    is_text: bool
    digits: int | None  # Number of decimals; None for four significant digits.


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table; `name` is also the name of its files.

    The names in a column "stage" are shown with colour samples. `digits` has the number of decimals by heading. The page
    shows the caption of a collapsed table, and the table when the reader opens it.
    """

    name: str
    caption: str
    headings: Sequence[str]
    rows: Sequence[TableRow]
    digits: Mapping[str, int] = field(default_factory=dict)
    is_collapsed: bool = False

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headings) for row in self.rows), self.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns; a column is one of text if any of its cells is."""
        return tuple(
            Column(heading, any(isinstance(row[index], str) for row in self.rows), self.digits.get(heading))
            for index, heading in enumerate(self.headings)
        )


@dataclass(frozen=True, slots=True)
class Toggle:
    """A button of a chart; `traces` and `layout` are the arguments of `Plotly.update`."""

    label: str
    traces: Mapping[str, Any] = field(default_factory=dict)
    layout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; `name` is also the name of its files.

    The caption describes in words and numbers what the chart shows. `traces` and `layout` are Plotly's; the layout is
    merged into the common template. Every axis has a title with its unit. The first toggle is the initial state.
    """

    name: str
    caption: str
    traces: tuple[Trace, ...]
    layout: Mapping[str, Any]
    height: int = 380
    toggles: tuple[Toggle, ...] = ()


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Caution:
    """A highlighted paragraph with a warning."""

    text: str


@dataclass(frozen=True, slots=True)
class FrameList:
    """Buttons that open frames: pairs of sequence number and label."""

    heading: str
    frames: tuple[tuple[int, str], ...]


ChapterPart = Paragraph | Caution | ReportTable | Chart | FrameList


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of a report; `anchor` is the fragment of its URL on the page.

    The page shows only the heading of a collapsed chapter until the reader opens it; its cautions also stand at the top.
    """

    anchor: str
    title: str
    parts: tuple[ChapterPart, ...]
    is_collapsed: bool = False


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One of the few numbers at the top of a report, formatted with its unit, and a short explanation."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image at the top of a report, as a data URL."""

    url: str
    caption: str


@dataclass(frozen=True, slots=True)
class ReportContent:
    """A report: its title, a summary of one or two sentences, and its chapters."""

    title: str
    summary: str
    chapters: tuple[Chapter, ...]
    frames: Mapping[str, Any] = field(default_factory=dict)  # The result of `frame_details`, for opening single frames.
    key_figures: tuple[KeyFigure, ...] = ()
    picture: Picture | None = None

    def tables(self) -> Iterator[ReportTable]:
        """Yields every table in reading order."""
        for chapter in self.chapters:
            yield from (part for part in chapter.parts if isinstance(part, ReportTable))

    def cautions(self) -> Iterator[tuple[Chapter, Caution]]:
        """Yields the cautions of collapsed chapters, which a reader would not see there."""
        for chapter in filter(lambda chapter: chapter.is_collapsed, self.chapters):
            yield from ((chapter, part) for part in chapter.parts if isinstance(part, Caution))

    def charts(self) -> Iterator[Chart]:
        """Yields every chart in reading order."""
        return (part for chapter in self.chapters for part in chapter.parts if isinstance(part, Chart))


def join_words(parts: Sequence[str]) -> str:
    """Joins words as "a", "a and b" or "a, b and c"."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
