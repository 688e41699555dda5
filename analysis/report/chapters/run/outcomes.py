"""The outcomes of the frames."""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from analysis.logs.run_log import RunLog, frames_not_sent
from analysis.offloading import throughput_hz
from analysis.report.chapters.traces import axis
from analysis.report.content import Chapter, Chart, ReportTable, TableRow
from analysis.report.output.number_format import share
from analysis.report.stage_styles import OUTCOME_COLOURS
from shared.runlog.latency_log import Outcome

NOT_SENT_TITLE = "Frames that were not sent"
_MEANINGS = {
    Outcome.ANSWERED: "got a worker's result in time",
    Outcome.REUSED: "was similar to an earlier frame and got its result",
    Outcome.ANSWERED_LOCALLY: "was answered by the vehicle's own model",
    Outcome.DROPPED: "was dropped at the vehicle",
    Outcome.EXPIRED: "got no result before its deadline: it came too late, or the worker gave up",
    Outcome.OVERLOADED: "reached a worker whose queue was full",
    Outcome.REJECTED: "was rejected by the worker",
    Outcome.FAILED: "failed in the model, or got an invalid result",
    Outcome.LOST: "was never answered",
    Outcome.ABORTED: "was open when the vehicle's process died",
}


def outcome_counts(frames: pd.DataFrame) -> dict[Outcome, int]:
    """Returns the number of frames with each outcome that occurs, in the order of Outcome."""
    counts = frames["outcome"].value_counts()
    return {outcome: int(counts[outcome.value]) for outcome in Outcome if counts.get(outcome.value, 0)}


def unanswered_note(frames: pd.DataFrame, answered: int) -> str:
    """Returns sentences for captions of statistics of frames answered by a worker; empty if every frame was.

    `frames` are all frames of the run.
    """
    read, not_sent = len(frames), len(frames_not_sent(frames))
    others = read - answered - not_sent
    notes = ""
    if not_sent:
        notes += f" The {not_sent:,} frames with a result that were not sent are not included: see {NOT_SENT_TITLE}."
    if others:
        notes += (
            f" The other {others:,} of {read:,} frames ({share(others / read)}) got no result in time and are not "
            "included, even if the system was slow for them."
        )
    return notes


def chapter(run: RunLog) -> Chapter:
    """Returns the outcomes of one run as a bar and a table."""
    return Chapter("outcomes", "Outcomes", (_chart(run), table(run.frames)))


def table(frames: pd.DataFrame) -> ReportTable:
    """Returns the outcomes of a run with their reasons."""
    read = len(frames)
    rows = tuple(
        (outcome.value, count, 100 * count / read, _MEANINGS[outcome], _reasons(frames, outcome))
        for outcome, count in outcome_counts(frames).items()
    )
    headings = ("outcome", "frames", "share %", "the frame …", "reasons")
    return ReportTable("outcomes", f"Outcomes of the {read:,} frames read.", headings, rows, {"share %": 2})


def _reasons(frames: pd.DataFrame, outcome: Outcome) -> str:
    """Lists the reasons of an outcome with their counts, most frequent first."""
    reasons = frames.loc[frames["outcome"] == outcome, "reason"].dropna().astype(str)
    counts = Counter(reason.partition(":")[0] for reason in reasons if reason)
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common())


def comparison(runs: Sequence[RunLog]) -> Chapter:
    """Returns the outcomes and the throughput of several runs."""
    counts = [outcome_counts(run.frames) for run in runs]
    shown = [outcome for outcome in Outcome if any(outcome in run_counts for run_counts in counts)]
    rows: tuple[TableRow, ...] = tuple(
        (run.name, len(run.frames), *(run_counts.get(outcome, 0) for outcome in shown), throughput_hz(run))
        for run, run_counts in zip(runs, counts, strict=True)
    )
    headings = ("run", "frames read", *(outcome.value for outcome in shown), "results a second")
    caption = (
        "Outcomes of the frames of each run, and frames with a result per second between the due time of the first frame "
        "and the last result."
    )
    return Chapter("outcomes", "Outcomes", (ReportTable("outcomes", caption, headings, rows),))


def _chart(run: RunLog) -> Chart:
    read = len(run.frames)
    counts = outcome_counts(run.frames)
    traces = tuple(
        {
            "type": "bar",
            "orientation": "h",
            "name": f"{outcome.value} {count:,}",
            "y": ["frames"],
            "x": [count],
            "marker": {"color": OUTCOME_COLOURS[outcome]},
            "hovertemplate": f"{outcome.value}: {count:,} of {read:,}<extra></extra>",
        }
        for outcome, count in counts.items()
    )
    listed = ", ".join(f"{outcome.value} {count:,} ({share(count / read)})" for outcome, count in counts.items())
    layout = {
        "barmode": "stack",
        "xaxis": axis("frames", range=[0, read]),
        "yaxis": {"visible": False},
        "margin": {"t": 40, "b": 48},
        "legend": {"traceorder": "normal"},
    }
    return Chart("outcomes", f"Outcomes of {read:,} frames read: {listed}.", traces, layout, height=150)
