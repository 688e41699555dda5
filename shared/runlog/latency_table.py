"""Tables for the terminal: the time of each stage, and the outcomes of the frames of a run."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
from rich.text import Text

from shared.runlog.latency_log import LogError, Outcome
from shared.runlog.percentiles import NOTE, has_percentile, percentiles, shown
from shared.stages import CLOUD_STAGES, EDGE_STAGES, OPTIONAL_STAGES, Stage
from shared.terminal_table import Table

_OUTBOUND = EDGE_STAGES[1 : EDGE_STAGES.index(Stage.RETURNED)]
_ALL_PARTS = (*_OUTBOUND, "crossing", *CLOUD_STAGES[1:], Stage.MASK_DECODED)
PARTS = tuple(part for part in _ALL_PARTS if part not in OPTIONAL_STAGES)  # Every frame answered by a worker has them.
WHERE = (
    dict.fromkeys(EDGE_STAGES, "edge")
    | dict.fromkeys(CLOUD_STAGES, "cloud")
    | dict.fromkeys(("crossing", "uplink", "downlink"), "link")
)


def parts_of(optional: Collection[str]) -> tuple[str, ...]:
    """Returns the parts whose durations add up to the total of a frame answered by a worker, in order.

    `optional`: the stages of `OPTIONAL_STAGES` that frames of the run passed.
    """
    return tuple(part for part in _ALL_PARTS if part not in OPTIONAL_STAGES or part in optional)


@dataclass(frozen=True, slots=True)
class StageSummary:
    """Statistics of one stage. `share` is its part of the total time of all frames answered by a worker, 0 to 1."""

    name: str
    where: str
    count: int  # Frames that passed the stage.
    p50_ms: float
    p95_ms: float
    p99_ms: float  # NaN if the sample is too small (see shared.runlog.percentiles).
    share: float


def summarise(rows: Iterable[Mapping[str, str]]) -> list[StageSummary]:
    """Summarises the frames answered by a worker by stage, with `total` last; empty without such frames.

    `rows` come from `latency_log.read_rows`; a row without the duration of a stage that is not optional is skipped.
    Optional stages that no frame passed are left out. Percentiles are linearly interpolated.

    Raises:
        LogError: a duration is not a number.
    """
    required = [f"{name}_ms" for name in (*PARTS, "total")]
    complete = [row for row in rows if row["outcome"] == Outcome.ANSWERED and all(row[name] for name in required)]
    passed = [stage for stage in OPTIONAL_STAGES if any(row[f"{stage}_ms"] for row in complete)]
    names = tuple(str(name) for name in (*parts_of(passed), "total"))
    return summarise_durations(_durations(complete, names), names)


def _durations(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Returns durations in milliseconds, shape (rows, names); NaN where a cell is empty."""
    texts = [[row[f"{name}_ms"] for name in names] for row in rows]
    try:
        durations = np.array([[float(text) if text else np.nan for text in line] for line in texts], np.float64)
    except ValueError as error:
        raise LogError(f"the log holds a duration that is not a number: {error}") from error
    if np.count_nonzero(np.isfinite(durations)) < sum(map(bool, chain.from_iterable(texts))):
        raise LogError("the log holds a duration that is not a finite number")
    return durations


def summarise_durations(answered: npt.NDArray[np.float64], names: Sequence[str]) -> list[StageSummary]:
    """Summarises an array of shape (frames, len(names)) of durations in milliseconds; the last name is `total`.

    A duration is NaN if the frame did not pass that stage.
    """
    total_ms = answered[:, -1].sum() if len(answered) else 0.0
    if not total_ms:
        return []
    return [_summary(name, WHERE.get(name, "all"), answered[:, column], total_ms) for column, name in enumerate(names)]


def _summary(name: str, where: str, values_ms: npt.NDArray[np.float64], total_ms: float) -> StageSummary:
    values_ms = values_ms[~np.isnan(values_ms)]
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
        name = summary.name if summary.count == count else f"{summary.name} ({summary.count} frames)"
        table.add_row(name, summary.where, *percentile_texts, f"{summary.share:.1%}")
    return table


def vehicle_result_tables(rows: Sequence[Mapping[str, str]]) -> Iterator[Table]:
    """Yields a table of the total times of frames whose result is reused or the local model's, if there are any.

    Raises:
        LogError: a duration is not a number.
    """
    by_outcome = {
        outcome: _durations([row for row in rows if row["outcome"] == outcome and row["total_ms"]], ["total"])[:, 0]
        for outcome in (Outcome.REUSED, Outcome.ANSWERED_LOCALLY)
        if any(row["outcome"] == outcome and row["total_ms"] for row in rows)
    }
    if not by_outcome:
        return
    is_small = not all(has_percentile(99, len(totals_ms)) for totals_ms in by_outcome.values())
    table = Table(title="Total time of frames that were not sent, milliseconds", caption=NOTE if is_small else "")
    table.add_column("result")
    for heading in ("frames", "p50", "p95", "p99"):
        table.add_column(heading, justify="right")
    for outcome, totals_ms in by_outcome.items():
        table.add_row(outcome.value, str(len(totals_ms)), *map(shown, percentiles(totals_ms, (50, 95, 99))))
    yield table


def outcome_table(rows: Sequence[Mapping[str, str]], totals: Mapping[Outcome, int] | None = None) -> Table:
    """Returns the number of frames by outcome, with the reasons of those without a result.

    `totals`: frames by outcome, if some have no row because the disk was full; None: all have one.
    """
    read = len(rows) if totals is None else sum(totals.values())
    table = Table(
        title=f"{read} frames read" + (f", {read - len(rows)} of them without a row" if read > len(rows) else "")
    )
    table.add_column("outcome")
    table.add_column("frames", justify="right")
    table.add_column("reasons")
    for outcome in Outcome:
        of_outcome = [row["reason"].partition(":")[0] for row in rows if row["outcome"] == outcome]
        count = len(of_outcome) if totals is None else totals.get(outcome, 0)
        if count:
            reasons = Counter(reason for reason in of_outcome if reason)
            reason_text = ", ".join(f"{reason} {number}" for reason, number in reasons.most_common())
            table.add_row(outcome.value, str(count), Text(reason_text))
    return table
