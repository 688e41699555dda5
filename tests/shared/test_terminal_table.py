from io import StringIO

import pytest
from rich.console import Console

from shared.terminal_table import Table

_HEADINGS = ("configuration", "throughput", "utilisation", "outcomes", "remarks of the run")
_ROW = ("frozen_graph.jpeg", "1,234,567.89", "98.765%", "answered 21, dropped 3", "nothing to be remarked")


def _shown(width: int, *, title: str = "") -> str:
    table = Table(*_HEADINGS, title=title, caption="a caption")
    for _ in range(3):
        table.add_row(*_ROW)
    out = StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_word_and_no_number_is_broken_at_any_width(width: int) -> None:
    """A word cut to "answe…" and a number over two lines cannot be read; columns that do not fit follow below."""
    shown = _shown(width, title="A table whose title is longer than the table is wide, as they often are")
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for word in " ".join((*_HEADINGS, *_ROW)).split():
        assert word in shown, word
    assert shown.index("A table") < shown.index("configuration") < shown.index("a caption")


def test_columns_that_do_not_fit_follow_below_with_the_first_column_repeated() -> None:
    """A figure without the name of its row says nothing."""
    assert _shown(200).count("configuration") == 1
    narrow = _shown(40)
    assert narrow.count("configuration") > 1
    assert narrow.count("frozen_graph.jpeg") == 3 * narrow.count("configuration")


def test_sections_are_kept_in_every_part() -> None:
    """The line above a total belongs to it."""
    table = Table("what", "value")
    table.add_row("a", "1")
    table.add_section()
    table.add_row("total", "1")
    out = StringIO()
    Console(file=out, width=80).print(table)
    lines = out.getvalue().splitlines()
    assert "├" in lines[4]
    assert "total" in lines[5]
