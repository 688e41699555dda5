"""What became of the frames."""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from bench.logs.run_log import RunLog
from bench.offloading.cost import throughput_hz
from bench.report.content import Chapter, Chart, Column, ReportTable, TableRow, number_columns, text_columns
from bench.report.output.number_format import share
from bench.report.output.stage_styles import OUTCOME_COLOURS
from shared.runlog.latency_log import Outcome

_MEANINGS = {
    Outcome.ANSWERED: "came back with a result, in time",
    Outcome.DROPPED: "was given up at the vehicle",
    Outcome.EXPIRED: "was answered too late to be of use",
    Outcome.OVERLOADED: "met a full worker",
    Outcome.REJECTED: "was not accepted by the worker",
    Outcome.FAILED: "met a model that failed, or came back with a result that cannot be used",
    Outcome.LOST: "was never answered",
    Outcome.ABORTED: "was open when the vehicle's process died",
}


def outcome_counts(frames: pd.DataFrame) -> dict[Outcome, int]:
    """How many frames ended how, in the order of Outcome; those that occurred."""
    found = frames["outcome"].value_counts()
    return {outcome: int(found[outcome.value]) for outcome in Outcome if found.get(outcome.value, 0)}


def reasons(frames: pd.DataFrame, outcome: Outcome) -> str:
    """The reasons of an outcome with their counts, the most frequent first."""
    of_outcome = frames.loc[frames["outcome"] == outcome, "reason"].dropna().astype(str)
    found = Counter(reason.partition(":")[0] for reason in of_outcome if reason)
    return ", ".join(f"{reason} {count:,}" for reason, count in found.most_common())


def unanswered_note(read: int, measured: int) -> str:
    """A sentence that percentiles of answered frames need beside them; empty where they are of all."""
    others = read - measured
    if not others:
        return ""
    whose = f"The other {others:,} of {read:,} frames read ({share(others / read)})"
    return f" {whose} have no total and are in no figure here: however slow the system was with them, it does not show."


def table(frames: pd.DataFrame) -> ReportTable:
    """The outcomes of a run, with their reasons."""
    read = len(frames)
    rows = tuple(
        (outcome.value, count, 100 * count / read, _MEANINGS[outcome], reasons(frames, outcome))
        for outcome, count in outcome_counts(frames).items()
    )
    columns = (
        *text_columns("outcome"),
        *number_columns("frames"),
        Column("share %", digits=2),
        *text_columns("the frame …", "reasons"),
    )
    return ReportTable("outcomes", f"What became of the {read:,} frames read.", columns, rows)


def chapter(run: RunLog) -> Chapter:
    """The outcomes of one run: a bar and a table."""
    return Chapter("outcomes", "Outcomes", (_chart(run), table(run.frames)))


def comparison(runs: Sequence[RunLog]) -> Chapter:
    """The outcomes of several runs, and how many frames each answered a second."""
    found = [outcome_counts(run.frames) for run in runs]
    shown = [outcome for outcome in Outcome if any(outcome in of_run for of_run in found)]
    rows: tuple[TableRow, ...] = tuple(
        (run.name, len(run.frames), *(of_run.get(outcome, 0) for outcome in shown), throughput_hz(run))
        for run, of_run in zip(runs, found, strict=True)
    )
    columns = (
        *text_columns("run"),
        *number_columns("frames read", *(outcome.value for outcome in shown), "answered a second"),
    )
    caption = "What became of the frames of each run, and its throughput: from the first frame due to the last result decoded."
    return Chapter("outcomes", "Outcomes", (ReportTable("outcomes", caption, columns, rows),))


def _chart(run: RunLog) -> Chart:
    read = len(run.frames)
    found = outcome_counts(run.frames)
    traces = tuple(
        {
            "type": "bar",
            "orientation": "h",
            "name": f"{outcome.value} {count:,}",
            "y": ["frames"],
            "x": [count],
            "marker": {"color": OUTCOME_COLOURS[outcome], "line": {"color": "#ffffff", "width": 1}},
            "hovertemplate": f"{outcome.value}: {count:,} of {read:,}<extra></extra>",
        }
        for outcome, count in found.items()
    )
    told = ", ".join(f"{outcome.value} {count:,} ({share(count / read)})" for outcome, count in found.items())
    return Chart(
        "outcomes",
        f"Of {read:,} frames read: {told}.",
        traces,
        {
            "barmode": "stack",
            "xaxis": {"title": {"text": "frames"}, "range": [0, read]},
            "yaxis": {"visible": False},
            "margin": {"t": 40, "b": 48},
            "showlegend": True,
            "legend": {"traceorder": "normal"},
        },
        height=150,
    )
