"""Tables for the terminal: the time of each stage, and the outcomes of the frames of a run."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.text import Text

from shared.runlog.latency_log import LogError, Outcome
from shared.runlog.percentiles import NOTE, has_percentile, percentiles, shown
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage
from shared.terminal_table import Table

_OUTBOUND = EDGE_STAGES[1 : EDGE_STAGES.index(Stage.RETURNED)]
PARTS = (
    *_OUTBOUND,
    "crossing",
    *CLOUD_STAGES[1:],
    Stage.MASK_DECODED,
)  # Their durations add up to the total of a frame.
WHERE = (
    dict.fromkeys(EDGE_STAGES, "edge")
    | dict.fromkeys(CLOUD_STAGES, "cloud")
    | dict.fromkeys(("crossing", "uplink", "downlink"), "link")
)


@dataclass(frozen=True, slots=True)
class StageSummary:
    """Statistics of one stage. `share` is its part of the total time of all answered frames, 0 to 1."""

    name: str
    where: str
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float  # NaN if the sample is too small (see shared.runlog.percentiles).
    share: float


def summarise(rows: Iterable[Mapping[str, str]]) -> list[StageSummary]:
    """Summarises the answered frames of a log by stage, with `total` last; empty without answered frames.

    `rows` come from `latency_log.read_rows`; a row without all stage durations is skipped. Percentiles are linearly
    interpolated.

    Raises:
        LogError: a duration is not a number.
    """
    names = tuple(str(name) for name in (*PARTS, "total"))
    columns = [[row[f"{name}_ms"] for name in names] for row in rows if row["outcome"] == Outcome.ANSWERED]
    try:
        answered = np.array([durations for durations in columns if all(durations)], np.float64)
    except ValueError as error:
        raise LogError(f"the log holds a duration that is not a number: {error}") from error
    if not np.isfinite(answered).all():
        raise LogError("the log holds a duration that is not a finite number")
    return summarise_durations(answered, names)


def summarise_durations(answered: npt.NDArray[np.float64], names: Sequence[str]) -> list[StageSummary]:
    """Summarises an array of shape (frames, len(names)) of durations in milliseconds; the last name is `total`."""
    total_ms = answered[:, -1].sum() if len(answered) else 0.0
    if not total_ms:
        return []
    return [_summary(name, WHERE.get(name, "all"), answered[:, column], total_ms) for column, name in enumerate(names)]


def _summary(name: str, where: str, values_ms: npt.NDArray[np.float64], total_ms: float) -> StageSummary:
    p50, p95, p99 = percentiles(values_ms, (50, 95, 99))
    return StageSummary(name, where, len(values_ms), p50, p95, p99, float(values_ms.sum() / total_ms))


def stage_table(summaries: Sequence[StageSummary]) -> Table:
    """Returns the summaries as a table."""
    count = summaries[0].count if summaries else 0
    table = Table(
        title=f"Latency by stage, {count} answered frames, milliseconds",
        caption="" if has_percentile(99, count) else NOTE,
    )
    table.add_column("stage")
    table.add_column("where")
    for heading in ("p50", "p95", "p99", "share"):
        table.add_column(heading, justify="right")
    for summary in summaries:
        if summary.name == "total":
            table.add_section()
        percentile_texts = map(shown, (summary.p50_ms, summary.p95_ms, summary.p99_ms))
        table.add_row(summary.name, summary.where, *percentile_texts, f"{summary.share:.1%}")
    return table


def outcome_table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Returns the number of frames by outcome, with the reasons of those that were not answered."""
    table = Table(title=f"{len(rows)} frames read")
    table.add_column("outcome")
    table.add_column("frames", justify="right")
    table.add_column("reasons")
    for outcome in Outcome:
        of_outcome = [row["reason"].partition(":")[0] for row in rows if row["outcome"] == outcome]
        if of_outcome:
            reasons = Counter(reason for reason in of_outcome if reason)
            reason_text = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
            table.add_row(outcome.value, str(len(of_outcome)), Text(reason_text))
    return table
