"""What a run prints at its end: its tables, what was sent again, who answered, what failed; and its exit code."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from edge.reliability.ledger import RunCounts
from edge.sources.source import SourceError
from shared.errors import SkylaneError
from shared.logs import LogFormat, get_logger
from shared.messages.model_card import ModelCard
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.latency_table import outcome_table, stage_table, summarise

NOTHING_ANSWERED = 3  # Exit code of a run in which no frame was answered in time, and nothing else went wrong.

_LOG = get_logger("edge")
_SHOWN_DIGITS = 12  # Of a hash.


class RejectedError(SkylaneError):
    """A worker accepted no frame of a run."""


def retries_told(counts: RunCounts) -> Iterator[str]:
    """What became of the frames that were sent twice; nothing where none was."""
    if counts.retried:
        duplicates = counts.ignored_answers.get("duplicate", 0)
        yield (
            f"{counts.retried} frames met silence and were sent again: the second attempt answered {counts.retry_won}; "
            f"{duplicates} answers came twice and were not taken"
        )


def unused_told(unused: Mapping[str, str]) -> Iterator[str]:
    """A warning for each worker's address that was given in vain; `unused`: why, by address."""
    for address, why in unused.items():
        yield f"WARNING: {address} got no frame: {why}"


def answerers_told(counts: RunCounts, card: ModelCard) -> Iterator[str]:
    """Who answered how many frames with what, and a warning where that is not one model.

    `card`: what was asked for. Workers of one group share the frames, whatever each of them serves by that name.
    """
    for by, frames in sorted(counts.answerers.items()):
        what = f"{card.name} {by.model_version}, {by.engine or 'engine not told'}, {by.sha256[:_SHOWN_DIGITS]}"
        yield f"{frames} frames answered by {by.worker} ({what})"
    models = {(by.model_version, by.sha256) for by in counts.answerers}
    if len(models) > 1:
        yield (
            f"WARNING: {len(models)} different models answered by the name of {card.name}: the results and the times of this "
            "run are of all of them; give --model-version to stay with one"
        )
    elif models and models != {(card.version, card.sha256)}:
        yield (
            f"WARNING: {card.name} was announced as version {card.version} ({card.sha256[:_SHOWN_DIGITS]}) and another "
            "one answered"
        )


def print_report(folder: Path, console: Console, remarks: Sequence[str]) -> list[dict[str, str]]:
    """Prints the tables of a run, remarks and where the run lies; returns its rows."""
    try:
        rows = list(read_rows(folder))
        summaries = summarise(rows)
    except SkylaneError as error:
        console.print(str(error), markup=False)
        return []
    if summaries:
        console.print(stage_table(summaries))
    console.print(outcome_table(rows))
    for line in remarks:
        console.print(line, markup=False, highlight=False)
    console.print(f"The run is in {folder.resolve()}", markup=False, highlight=False, soft_wrap=True)
    return rows


def common_faults(rows: Sequence[Mapping[str, str]], source_name: str, model: str) -> Iterator[SkylaneError]:
    """Yields the error that all frames of a run have in common; it says what to do, for which the tables have no room."""
    if rows and all(row["reason"].startswith("undecodable") for row in rows):
        yield SourceError(f"{source_name}: none of its {len(rows)} frames can be read: {rows[0]['reason']}")
    if rows and all(row["outcome"] == Outcome.REJECTED for row in rows):
        yield RejectedError(f"model {model}: all {len(rows)} frames were rejected: {rows[0]['reason']}")


def exit_code(
    rows: Sequence[Mapping[str, str]], faults: Sequence[SkylaneError], log_format: LogFormat | None = None
) -> int:
    """Reports faults on standard error, in the format of the log lines; returns the exit code of the run."""
    code = 1 if faults else 0
    problems = [str(fault) for fault in faults]
    if rows and not faults and not any(row["outcome"] == Outcome.ANSWERED for row in rows):
        code = NOTHING_ANSWERED
        problems = [f"none of the {len(rows)} frames was answered in time: see the table of outcomes"]
    for problem in problems:
        if log_format == LogFormat.JSON:
            _LOG.error("run failed", reason=problem)
        else:
            click.echo(f"skylane: {problem}", err=True)
    return code
