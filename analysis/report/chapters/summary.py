"""Summarizes a run, several runs or a study in one or two sentences, which stand at the top of the report."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.logs.run_log import frames_not_sent, frames_with_result
from analysis.report.chapters.run.outcomes import outcome_counts
from analysis.report.content import KeyFigure, join_words
from analysis.report.data.answered_frames import FrameGroup, column_values, part_durations, parts_in, timed_results
from analysis.report.data.study_log import StudyLog
from analysis.report.output.number_format import NOTHING, milliseconds, number, share
from analysis.report.stage_styles import STAGES
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import has_percentile

_MAX_RUNS = 6


_NOT_SENT_TEXTS = {
    Outcome.REUSED: "got the result of an earlier frame",
    Outcome.ANSWERED_LOCALLY: "were answered by the vehicle's own model",
}


def run_summary(frames: pd.DataFrame, answered: pd.DataFrame) -> str:
    """Summarizes a run: its outcomes and the longest stage.

    `frames` are all frames of the run; `answered` are those answered by a worker with all stage durations.
    """
    read, counts = len(frames), outcome_counts(frames)
    if not read:
        return "No frame was read."
    count = counts.pop(Outcome.ANSWERED, 0)
    not_sent = [f"{counts.pop(outcome):,} {text}" for outcome, text in _NOT_SENT_TEXTS.items() if outcome in counts]
    others = join_words([f"{number:,} {outcome.value}" for outcome, number in counts.items()])
    first = f"{count:,} of {read:,} frames were answered" if count else f"None of {read:,} frames was answered"
    if not_sent:
        first = join_words([f"{first} by a worker", *not_sent])
    stages = {part: float(part_durations(answered, part).sum()) for part in parts_in(answered)}
    longest = max(stages, key=lambda stage: stages[stage])
    total = float(column_values(answered, "total_ms").sum())
    whose = "the time of the frames answered by a worker" if not_sent else "their time"
    spent = f" {share(stages[longest] / total)} of {whose} was spent in the stage {longest}" if total else ""
    return f"{first}{f' ({others})' if others else ''}.{f'{spent}, in which the frame {STAGES[longest].meaning}.' if spent else ''}"


def key_figures(frames: pd.DataFrame, rate_hz: float) -> tuple[KeyFigure, ...]:
    """Returns the numbers that most readers look for: frames answered, median and 95th percentile, frames per second.

    If frames got a result without being sent, their share is one more number, and all numbers include them.
    """
    read, not_sent = len(frames), len(frames_not_sent(frames))
    count = len(frames_with_result(frames))
    totals = column_values(timed_results(frames), "total_ms")
    p50, p95 = (
        milliseconds(float(np.percentile(totals, percent))) if has_percentile(percent, len(totals)) else NOTHING
        for percent in (50, 95)
    )
    label = "with a result" if not_sent else "answered"
    of_totals = f"of {len(totals):,} frames {label}" if not_sent else f"of {len(totals):,} answered frames"
    figures = [
        KeyFigure(label, share(count / read) if read else NOTHING, f"{count:,} of {read:,} frames"),
        KeyFigure("median latency (p50)", p50, of_totals),
        KeyFigure("95th percentile (p95)", p95, of_totals),
        KeyFigure("frames per second", number(rate_hz), label),
    ]
    if not_sent:
        figures.insert(1, KeyFigure("not sent", share(not_sent / read), f"{not_sent:,} frames, reused or local result"))
    return tuple(figures)


def runs_summary(groups: Sequence[FrameGroup]) -> str:
    """Lists the median latencies of several runs, the fastest run first."""
    medians = _medians(groups)
    if not medians:
        return "No frame of any run got a result."
    listed = join_words([f"{milliseconds(p50)} in {name}" for p50, name in medians[:_MAX_RUNS]])
    more = f", and more in {len(medians) - _MAX_RUNS} other runs" if len(medians) > _MAX_RUNS else ""
    return f"Median latency of the frames with a result: {listed}{more}. Others are not included: see Outcomes."


def study_summary(study: StudyLog) -> str:
    """Describes a study, how its runs ended, and its fastest and slowest cell."""
    states = study.runs["state"].value_counts()
    ended = join_words([f"{count:,} {state}" for state, count in states.items()])
    summary = f"{len(study.runs):,} runs of {len(study.cells):,} cells: {ended}."
    if description := str(study.manifest.get("description") or "").strip().rstrip("."):
        summary = f"{description}. {summary}"
    medians = _medians(map(study.group, study.cells))
    if not medians:
        return f"{summary} No frame got a result in the measured time."
    (fastest, first), (slowest, last) = medians[0], medians[-1]
    if len(medians) == 1:
        return f"{summary} Median latency: {milliseconds(fastest)} in {first}."
    return (
        f"{summary} Median latency: {milliseconds(fastest)} in {first} (the fastest cell), {milliseconds(slowest)} in "
        f"{last} (the slowest)."
    )


def _medians(groups: Iterable[FrameGroup]) -> list[tuple[float, str]]:
    """Returns the median latency and the name of each group with results, the fastest first."""
    return sorted((float(group.results["total_ms"].median()), group.name) for group in groups if len(group.results))
