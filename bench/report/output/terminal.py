"""A report's main tables on the terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from bench.report.chapters.run.stages import summaries
from bench.report.content import Kind, Prose, Report, Table
from bench.report.data.answered_frames import answered
from bench.report.data.report_input import Subject
from bench.report.output.number_format import text
from bench.statistics.description import Estimate
from shared.runlog.latency_table import outcome_table, stage_table
from shared.terminal_table import Table as Grid

_OF_SEVERAL = ("outcomes", "stages", "totals")
_OF_STUDY = ("not_done", "results")


def show(subject: Subject, report: Report) -> Iterator[RenderableType]:
    """Of a run the stages and outcomes; of several, or a study, the tables side by side and what may be said of them."""
    if len(subject.runs) == 1:
        frames = subject.runs[0].frames
        if summarised := summaries(answered(frames)):
            yield stage_table(summarised)
        yield outcome_table(frames[["outcome", "reason"]].fillna("").to_dict("records"))
        return
    names = _OF_STUDY if subject.study else _OF_SEVERAL
    yield from (_grid(table) for table in report.tables() if table.name in names)
    for section in report.sections:
        if section.anchor == "comparison":
            yield from (part.text for part in section.parts if isinstance(part, Prose))


def _grid(table: Table) -> Grid:
    """The table for the terminal, without the bounds of its estimates, which would take three lines each."""
    has_bounds = any(isinstance(cell, Estimate) for row in table.rows for cell in row)
    grid = Grid(title=table.caption, caption="The intervals are on the page." if has_bounds else "")
    for column in table.columns:
        grid.add_column(column.heading, justify="right" if column.kind is Kind.NUMBER else "left")
    for row in table.rows:
        cells = (cell.value if isinstance(cell, Estimate) else cell for cell in row)
        grid.add_row(*(Text(text(cell, column.digits)) for cell, column in zip(cells, table.columns, strict=True)))
    return grid
