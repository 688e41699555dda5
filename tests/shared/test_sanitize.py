"""Text from other sources cannot control a terminal, nor a spreadsheet."""

import pytest

from shared.sanitize import csv_text, printable, printable_lines

# Text, as one line, as lines, and as a cell.
TEXTS = [
    ("plain – text", "plain – text", "plain – text", "plain – text"),
    ("two\nlines", "two lines", "two\nlines", "two lines"),
    ("a\x1b[2J\nb\r\x07", "a [2J b  ", "a [2J\nb  ", "a [2J b  "),
    ("name\udcff\u202e", "name\udcff ", "name\udcff ", "name\udcff "),
    ("=1+1", "=1+1", "=1+1", "'=1+1"),
    ("＠x\n", "＠x ", "＠x\n", "'＠x "),
]


@pytest.mark.parametrize(("text", "line", "lines", "cell"), TEXTS)
def test_control_characters_become_blanks(text: str, line: str, lines: str, cell: str) -> None:
    """Surrogates are kept, because they stand for bytes of file names."""
    assert (printable(text), printable_lines(text), csv_text(text)) == (line, lines, cell)
