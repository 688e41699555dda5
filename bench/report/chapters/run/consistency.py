"""Whether the log can be trusted: what could not be read, and which of its promises do not hold."""

from collections.abc import Sequence

from bench.logs.problems import Problem
from bench.report.content import Caution, Chapter, Paragraph, ReportTable, number_columns, text_columns

_TITLE = "Is the log sound?"


def chapter(problems: Sequence[Problem], rows: int) -> Chapter:
    """The problems of one run or several, each with its file, row and column."""
    if not problems:
        told = f"Yes: all {rows:,} rows could be read, and every promise of the log holds."
        return Chapter("soundness", _TITLE, (Paragraph(told),))
    caution = Caution(
        f"Not in everything: {len(problems)} {'problem was' if len(problems) == 1 else 'problems were'} found. What could "
        "not be read is left out of this report and never filled in."
    )
    listed = tuple((str(problem.file), problem.row, problem.column or "", problem.what) for problem in problems)
    columns = (*text_columns("file"), *number_columns("row"), *text_columns("column", "what is wrong"))
    return Chapter(
        "soundness", _TITLE, (caution, ReportTable("problems", "What is wrong, and where.", columns, listed))
    )
