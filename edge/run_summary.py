"""The summary that a run prints at its end: tables, retries, workers, warnings; and the exit code."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from edge.ledger import RunCounts
from edge.sources.source import SourceError
from shared.errors import SkylaneError
from shared.logs import LogFormat, get_logger
from shared.messages.model_card import ModelCard
from shared.runlog.latency_log import WITH_RESULT, Outcome, read_rows
from shared.runlog.latency_table import outcome_table, stage_table, summarise, vehicle_result_tables

NOTHING_ANSWERED = 3  # Exit code of a run without errors in which no frame got a result in time.

_LOG = get_logger("edge")
_SHOWN_DIGITS = 12  # Length of a model's hash in a line.


class RejectedError(SkylaneError):
    """The workers rejected every frame of a run."""


def retry_lines(counts: RunCounts) -> Iterator[str]:
    """Yields a line about retried frames, if there were any."""
    if counts.retried:
        duplicates = counts.ignored_answers.get("duplicate", 0)
        yield (
            f"{counts.retried} frames were sent again because no answer came: the second attempt answered "
            f"{counts.retry_won}; {duplicates} duplicate answers were ignored"
        )


def unused_lines(unused: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each worker address that got no frame. `unused`: the reason by address."""
    for address, reason in unused.items():
        yield f"WARNING: {address} got no frame: {reason}"


def origin_lines(counts: RunCounts, card: ModelCard) -> Iterator[str]:
    """Yields how many frames each worker answered, and a warning if not all used the model of `card`."""
    for origin, frames in sorted(counts.origins.items()):
        engine = origin.engine or "unknown engine"
        model = f"{card.name} {origin.model_version}, {engine}, {origin.sha256[:_SHOWN_DIGITS]}"
        yield f"{frames} frames answered by {origin.worker} ({model})"
    models = {(origin.model_version, origin.sha256) for origin in counts.origins}
    if len(models) > 1:
        yield (
            f"WARNING: {len(models)} different models named {card.name} answered: the results and times of this run mix "
            "them; give --model-version to use one only"
        )
    elif models and models != {(card.version, card.sha256)}:
        yield (
            f"WARNING: {card.name} was announced as version {card.version} ({card.sha256[:_SHOWN_DIGITS]}), but "
            "another one answered"
        )


def print_report(folder: Path, console: Console, remarks: Sequence[str]) -> list[dict[str, str]]:
    """Prints the tables of a run, the remarks and the run's folder; returns the rows of the latency log."""
    try:
        rows = list(read_rows(folder))
        summaries = summarise(rows)
        vehicle_results = list(vehicle_result_tables(rows))
    except SkylaneError as error:
        console.print(str(error), markup=False)
        return []
    if summaries:
        console.print(stage_table(summaries))
    for table in vehicle_results:
        console.print(table)
    console.print(outcome_table(rows))
    for line in remarks:
        console.print(line, markup=False, highlight=False)
    console.print(f"The run is in {folder.resolve()}", markup=False, highlight=False, soft_wrap=True)
    return rows


def common_faults(rows: Sequence[Mapping[str, str]], source_name: str, model: str) -> Iterator[SkylaneError]:
    """Yields the error that all frames of a run share, with its remedy, which the tables have no room for."""
    if rows and all(row["reason"].startswith("undecodable") for row in rows):
        yield SourceError(f"{source_name}: none of its {len(rows)} frames can be read: {rows[0]['reason']}")
    if rows and all(row["outcome"] == Outcome.REJECTED for row in rows):
        yield RejectedError(f"model {model}: all {len(rows)} frames were rejected: {rows[0]['reason']}")


def exit_code(
    rows: Sequence[Mapping[str, str]], faults: Sequence[SkylaneError], log_format: LogFormat | None = None
) -> int:
    """Reports faults on standard error, in the format of the log lines, and returns the exit code of the run."""
    code = 1 if faults else 0
    problems = [str(fault) for fault in faults]
    if not faults and not any(row["outcome"] in WITH_RESULT for row in rows):
        code = NOTHING_ANSWERED
        problem = f"none of the {len(rows)} frames got a result in time: {_shared_reason(rows)}" if rows else ""
        problems = [problem or "the run has no frames: its source has none, or it ended before the first"]
    for problem in problems:
        if log_format == LogFormat.JSON:
            _LOG.error("run failed", reason=problem)
        else:
            click.echo(f"skylane: {problem}", err=True)
    return code


def _shared_reason(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns the reason of the first frame if the others failed for one of its kind, with details of their own."""
    kind, _, details = rows[0]["reason"].partition(":")
    is_shared = bool(details) and all(row["reason"].partition(":")[0] == kind for row in rows)
    return rows[0]["reason"] if is_shared else "see the table of outcomes"
