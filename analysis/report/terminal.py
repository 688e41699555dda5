"""Shows the main tables of a report on the terminal."""

from collections.abc import Iterator

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from analysis.report.chapters.run.stages import stage_summaries
from analysis.report.content import Paragraph, ReportContent, ReportTable
from analysis.report.data.answered_frames import answered_frames
from analysis.report.data.report_input import ReportInput
from analysis.report.output.number_format import text
from analysis.statistics.description import IntervalEstimate
from shared.runlog.latency_table import outcome_table, stage_table, vehicle_result_tables
from shared.terminal_table import Table as TerminalTable

_RUN_TABLES = ("streaming", "streaming_origins", "streaming_missing")
_COMPARISON_TABLES = ("outcomes", "streaming_runs", "stages", "totals")
_STUDY_TABLES = ("not_done", "results", "streaming_cells")


def terminal_tables(source: ReportInput, report: ReportContent) -> Iterator[RenderableType]:
    """Yields stages and outcomes of a run; for several runs or a study, the main tables and comparison sentences."""
    if len(source.runs) == 1:
        frames = source.runs[0].frames
        if summaries := stage_summaries(answered_frames(frames)):
            yield stage_table(summaries)
        yield from vehicle_result_tables(_texts(frames[["outcome", "total_ms"]]))
        yield outcome_table(_texts(frames[["outcome", "reason"]]))
        yield from (_terminal_table(table) for table in report.tables() if table.name in _RUN_TABLES)
        return
    names = _STUDY_TABLES if source.study else _COMPARISON_TABLES
    yield from (_terminal_table(table) for table in report.tables() if table.name in names)
    for chapter in report.chapters:
        if chapter.anchor == "comparison":
            yield from (part.text for part in chapter.parts if isinstance(part, Paragraph))


def _texts(frames: pd.DataFrame) -> list[dict[str, str]]:
    """Returns rows as they are in the log: text, empty if not known."""
    return [
        {str(name): text for name, text in row.items()} for row in frames.astype("string").fillna("").to_dict("records")
    ]


def _terminal_table(table: ReportTable) -> TerminalTable:
    """Converts a table without its intervals, which would need three lines each."""
    has_intervals = any(isinstance(cell, IntervalEstimate) for row in table.rows for cell in row)
    shown = TerminalTable(title=table.caption, caption="The HTML report has the intervals." if has_intervals else "")
    for column in table.columns:
        shown.add_column(column.heading, justify="left" if column.is_text else "right")
    for row in table.rows:
        cells = (cell.value if isinstance(cell, IntervalEstimate) else cell for cell in row)
        shown.add_row(*(Text(text(cell, column.digits)) for cell, column in zip(cells, table.columns, strict=True)))
    return shown
