"""Terminal tables that never break a word or a number."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from shared.sanitize import printable_lines


class _Style(NamedTuple):
    """A drawing style; the frame adds `rim` characters to a table's width, and `gap` per column."""

    box: box.Box
    padding: tuple[int, int, int, int]
    rim: int
    gap: int


_FRAMED = _Style(box.HEAVY_HEAD, (0, 1, 0, 1), rim=1, gap=3)
_DENSE = _Style(box.SIMPLE_HEAD, (0, 1, 0, 0), rim=1, gap=2)


@dataclass(slots=True)
class _Column:
    heading: Text
    justify: JustifyMethod
    no_wrap: bool
    cells: list[Text] = field(default_factory=list)

    @property
    def max_width(self) -> int:
        """The width of the longest line."""
        return max(cell_len(line) for text in self._texts() for line in text.plain.split("\n"))

    @property
    def min_width(self) -> int:
        """The width of the longest word, or of the longest line if lines must not wrap."""
        if self.no_wrap:
            return self.max_width
        return max((cell_len(word) for text in self._texts() for word in text.plain.split()), default=1)

    def _texts(self) -> Iterator[Text]:
        yield self.heading
        yield from self.cells


class Table:
    """A table whose lines wrap only between words.

    If it is too wide for the terminal, its frame is omitted. If that is not enough, the remaining columns follow in
    another table below, with the first column repeated. Only a word that is wider than the terminal is broken.
    """

    def __init__(
        self,
        *headings: str,
        title: str = "",
        caption: str = "",
        show_header: bool = True,
    ) -> None:
        self._title = title
        self._caption = caption
        self._show_header = show_header
        self._columns: list[_Column] = []
        self._sections: list[int] = []
        for heading in headings:
            self.add_column(heading)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self._columns[0].cells) if self._columns else 0

    def add_column(self, heading: str = "", *, justify: JustifyMethod = "left", no_wrap: bool = False) -> None:
        """Adds a column; its cells wrap between words unless `no_wrap`."""
        self._columns.append(_Column(Text(printable_lines(heading)), justify, no_wrap))

    def add_row(self, *cells: str | Text) -> None:
        """Adds a row; a `str` may contain Rich markup. A table without columns gets one per cell of the first row.

        Characters that control a terminal become blanks.
        """
        if not self._columns:
            self._columns = [_Column(Text(), "left", no_wrap=False) for _ in cells]
        for column, cell in zip(self._columns, cells, strict=True):
            text = Text.from_markup(cell) if isinstance(cell, str) else cell
            text.plain = printable_lines(text.plain)
            column.cells.append(text)

    def add_section(self) -> None:
        """Adds a line before the next row."""
        self._sections.append(len(self._columns[0].cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders the table in one or several parts."""
        style = _FRAMED if _width(self._columns, _FRAMED) <= options.max_width else _DENSE
        if self._title:
            yield Text(printable_lines(self._title), style="table.title")
        for group in self._groups(style, options.max_width):
            yield self._part(group, style, options.max_width)
        if self._caption:
            yield Text(printable_lines(self._caption), style="table.caption")

    def _groups(self, style: _Style, width: int) -> Iterator[list[_Column]]:
        """Yields the columns of each part; the first column is in all of them."""
        first, *others = self._columns
        group = [first]
        for column in others:
            if len(group) > 1 and _width([*group, column], style) > width:
                yield group
                group = [first]
            group.append(column)
        yield group

    def _part(self, group: Sequence[_Column], style: _Style, width: int) -> RichTable:
        part = RichTable(box=style.box, padding=style.padding, show_header=self._show_header)
        missing = sum(column.max_width - column.min_width for column in group)
        share = min(1.0, max(0, width - _width(group, style)) / missing) if missing else 0.0
        for column in group:
            added = int(share * (column.max_width - column.min_width))
            part.add_column(
                column.heading, justify=column.justify, width=min(column.min_width, width) + added, overflow="fold"
            )
        for number, cells in enumerate(zip(*(column.cells for column in group), strict=True), start=1):
            part.add_row(*cells, end_section=number in self._sections)
        return part


def _width(columns: Sequence[_Column], style: _Style) -> int:
    """Returns the minimum width of a table with these columns."""
    return style.rim + sum(column.min_width + style.gap for column in columns)


def result_table(title: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]], caption: str = "") -> Table:
    """A table of results.

    `columns`: headings, each with the format of its numbers, such as ".2f", or "<" for left-justified text ("<!": which is not
    wrapped between words). None in a row leaves a cell empty.
    """
    table = Table(title=title, caption=caption)
    for heading, spec in columns.items():
        table.add_column(heading, justify="left" if spec.startswith("<") else "right", no_wrap=spec == "<!")
    for row in rows:
        table.add_row(*(_formatted(value, spec) for value, spec in zip(row, columns.values(), strict=True)))
    return table


def _formatted(value: Any, spec: str) -> str | Text:
    if value is None:
        return ""
    return value if isinstance(value, str | Text) else format(value, spec.lstrip("<!"))
