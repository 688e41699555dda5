"""The results of a report as JSON data, and its main tables for the terminal."""

import json
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from analysis.logs.run_log import RunLog
from analysis.offloading import throughput_hz
from analysis.report.chapters.comparisons.runs import compare_totals
from analysis.report.chapters.run.distribution import describe_stages
from analysis.report.chapters.run.outcomes import outcome_counts
from analysis.report.chapters.run.stages import stage_summaries
from analysis.report.chapters.run.workers import worker_shares
from analysis.report.chapters.streaming import streaming_json
from analysis.report.content import Paragraph, ReportContent, ReportTable
from analysis.report.data.answered_frames import FrameGroup, answered_frames
from analysis.report.data.report_input import ReportInput, StudyLog
from analysis.report.data.unsent_frames import origin_summaries
from analysis.report.output.number_format import text
from analysis.statistics.description import IntervalEstimate
from shared.runlog.latency_table import outcome_table, stage_table, vehicle_result_tables
from shared.terminal_table import Table as TerminalTable


def report_json(source: ReportInput) -> Any:
    """Returns the results as JSON data; values that were not measured are None.

    A run has the keys `name`, `outcomes`, `origins`, `workers`, `stages`, `statistics`, `throughput_hz` and `manifest`, and
    `streaming` if true labels were given. Several runs have them in `runs`, with `comparisons` of each run with the first. A
    study has `manifest`, `runs` and `comparisons` by axis. `problems` is always at the top level.
    """
    results = {**_results(source), "problems": [str(problem) for problem in source.problems]}
    # Only Python's JSON has NaN and infinity.
    return json.loads(json.dumps(results, default=_plain), parse_constant=lambda _: None)


def _results(source: ReportInput) -> dict[str, Any]:
    if source.study:
        return _study(source.study)
    if len(source.runs) == 1:
        return _runs(source)[0]
    groups = [group for group in map(FrameGroup.of_run, source.runs) if len(group.results)]
    comparisons = compare_totals(((groups[0], other) for other in groups[1:]), in_blocks=False)
    return {"runs": _runs(source), "comparisons": comparisons}


def _runs(source: ReportInput) -> list[dict[str, Any]]:
    streaming = [{"streaming": streaming_json(accuracy)} for accuracy in source.streaming] or [{}] * len(source.runs)
    return [_run(run) | scored for run, scored in zip(source.runs, streaming, strict=True)]


def _run(run: RunLog) -> dict[str, Any]:
    answered = answered_frames(run.frames)
    return {
        "name": run.name,
        "outcomes": {outcome.value: count for outcome, count in outcome_counts(run.frames).items()},
        "origins": origin_summaries(run.frames),
        "workers": worker_shares(answered),
        "stages": stage_summaries(answered),
        "statistics": describe_stages(answered),
        "throughput_hz": throughput_hz(run),
        "manifest": dict(run.manifest),
    }


def _study(study: StudyLog) -> dict[str, Any]:
    by_axis = {
        axis: compare_totals(((study.group(a), study.group(b)) for a, b in study.pairs(axis)), in_blocks=True)
        for axis in (study.axes if len(study.results) else ())
    }
    runs = study.runs.astype(object).to_dict("records")
    return {"manifest": dict(study.manifest), "runs": runs, "comparisons": by_axis}


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


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
