"""Writes the tables of a report as files: CSV for programs, Markdown and LaTeX for papers."""

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from analysis.report.content import CellValue, ReportTable
from analysis.report.output.number_format import text
from analysis.statistics.description import IntervalEstimate
from shared.errors import SkylaneError
from shared.files import write_file
from shared.sanitize import csv_text

_LATEX: Final = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "−": "$-$", "–": "--", "×": r"$\times$", "±": r"$\pm$", "·": r"$\cdot$", "½": r"$\frac12$", "≤": r"$\le$",
    "≥": r"$\ge$", "→": r"$\to$", "\N{NO-BREAK SPACE}": "~",
})  # fmt: skip
_MARKDOWN: Final = str.maketrans({"|": r"\|", "\n": " ", "<": "&lt;", ">": "&gt;"})
_ENDS: Final = ("low", "high")
_DECIMALS: Final = 6  # Decimals of a float in CSV: milliseconds to the nanosecond.


class TablesError(SkylaneError):
    """The tables cannot be written."""


def write_tables(tables: Iterable[ReportTable], folder: Path, root: Path | None = None) -> list[Path]:
    """Writes each table as `<name>.csv`, `<name>.md` and `<name>.tex`; for `root`, see `new_file`.

    Raises:
        TablesError: The files cannot be written.
    """
    written = []
    try:
        for table in tables:
            for suffix, render in ((".csv", to_csv), (".md", to_markdown), (".tex", to_latex)):
                path = folder / f"{table.name}{suffix}"
                write_file(path, render(table), root)
                written.append(path)
    except OSError as error:
        raise TablesError(f"{folder} cannot be written: {error.strerror}: choose another --tables") from error
    return written


def to_csv(table: ReportTable) -> str:
    """Formats a table as CSV: plain numbers, estimates as three columns, empty cells for values not measured."""
    columns: list[list[str]] = []
    for index, heading in enumerate(table.headings):
        cells = [row[index] for row in table.rows]
        columns.append(
            [csv_text(heading), *(_plain(cell.value if isinstance(cell, IntervalEstimate) else cell) for cell in cells)]
        )
        if any(isinstance(cell, IntervalEstimate) for cell in cells):
            columns += ([f"{heading} {end}", *(_plain(getattr(cell, end, None)) for cell in cells)] for end in _ENDS)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(zip(*columns, strict=True))
    return out.getvalue()


def _plain(cell: str | float | None) -> str:
    if isinstance(cell, str):
        return csv_text(cell)
    if cell is None or isinstance(cell, int):
        return "" if cell is None else str(cell)
    return f"{cell:.{_DECIMALS}f}" if math.isfinite(cell) else ""


def to_markdown(table: ReportTable) -> str:
    """Formats a table as GitHub Markdown with its caption above."""
    headings = [column.heading.translate(_MARKDOWN) for column in table.columns]
    rule = ["---" if column.is_text else "---:" for column in table.columns]
    rows = [[text.translate(_MARKDOWN) for text in _texts(table, row)] for row in table.rows]
    lines = (f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))
    return f"{table.caption}\n\n" + "\n".join(lines) + "\n"


def to_latex(table: ReportTable) -> str:
    r"""Formats a table for LaTeX; the document needs `\usepackage{booktabs}` and UTF-8."""
    alignment = "".join("l" if column.is_text else "r" for column in table.columns)
    headings = [escaped(column.heading) for column in table.columns]
    rows = [[escaped(cell) for cell in _texts(table, row)] for row in table.rows]
    body = [f"    {' & '.join(cells)} \\\\" for cells in rows]
    return "\n".join((
        "\\begin{table}",
        f"  \\caption{{{escaped(table.caption)}}}",
        f"  \\label{{tab:{table.name}}}",
        "  \\centering",
        f"  \\begin{{tabular}}{{{alignment}}}",
        "    \\toprule",
        f"    {' & '.join(headings)} \\\\",
        "    \\midrule",
        *body,
        "    \\bottomrule",
        "  \\end{tabular}",
        "\\end{table}",
        "",
    ))  # fmt: skip


def escaped(text: str) -> str:
    """Escapes the special characters of LaTeX."""
    return " ".join(text.split()).translate(_LATEX)


def _texts(table: ReportTable, row: tuple[CellValue, ...]) -> list[str]:
    return [text(cell, column.digits) for cell, column in zip(row, table.columns, strict=True)]
