"""Summarizes a run, several runs or a study in one or two sentences, which stand at the top of the report."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bench.report.chapters.run.outcomes import outcome_counts
from bench.report.content import KeyFigure, join_words
from bench.report.data.answered_frames import FrameGroup, column_values
from bench.report.data.study_log import StudyLog
from bench.report.output.number_format import NOTHING, milliseconds, number, share
from bench.report.output.stage_styles import STAGES
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS

_MAX_RUNS = 6
_MIN_FRAMES_FOR_P95 = 20


def run_summary(frames: pd.DataFrame, answered: pd.DataFrame) -> str:
    """Summarizes a run: outcomes, latencies and the longest stage.

    `frames` are all frames of the run; `answered` are the answered ones with all stage durations.
    """
    read, counts = len(frames), outcome_counts(frames)
    if not read:
        return "No frame was read."
    count = counts.pop(Outcome.ANSWERED, 0)
    others = join_words([f"{number:,} {outcome.value}" for outcome, number in counts.items()])
    first = f"{count:,} of {read:,} frames were answered" if count else f"None of {read:,} frames was answered"
    if others:
        first += f" ({others})"
    return f"{first}: {_latencies(answered)}" if len(answered) else f"{first}."


def key_figures(frames: pd.DataFrame, answered: pd.DataFrame, rate_hz: float) -> tuple[KeyFigure, ...]:
    """Returns the numbers that most readers look for: frames answered, median and 95th percentile, frames per second."""
    read, count = len(frames), outcome_counts(frames).get(Outcome.ANSWERED, 0)
    totals = column_values(answered, "total_ms")
    p50, p95 = np.percentile(totals, (50, 95)).tolist() if len(totals) else (np.nan, np.nan)
    of_totals = f"of {len(totals):,} answered frames"
    return (
        KeyFigure("answered", share(count / read) if read else NOTHING, f"{count:,} of {read:,} frames"),
        KeyFigure("median latency (p50)", _or_nothing(p50), of_totals),
        KeyFigure("95th percentile (p95)", _or_nothing(p95), of_totals),
        KeyFigure("frames per second", number(rate_hz), "answered"),
    )


def _or_nothing(value_ms: float) -> str:
    return milliseconds(value_ms) if np.isfinite(value_ms) else NOTHING


def _latencies(answered: pd.DataFrame) -> str:
    totals = column_values(answered, "total_ms")
    p50, p95 = (float(value) for value in np.percentile(totals, (50, 95)))
    slow = f"all within {milliseconds(totals.max())}"
    if len(totals) >= _MIN_FRAMES_FOR_P95:
        slow = f"95 % within {milliseconds(p95)}"
    latencies = f"half of them within {milliseconds(p50)}, {slow}."
    stages = {str(part): float(column_values(answered, f"{part}_ms").sum()) for part in PARTS}
    longest = max(stages, key=lambda stage: stages[stage])
    total = float(totals.sum())
    if not total:
        return latencies
    spent = f"{share(stages[longest] / total)} of their time was spent in the stage {longest}"
    return f"{latencies} {spent}, in which the frame {STAGES[longest].meaning}."


def runs_summary(groups: Sequence[FrameGroup]) -> str:
    """Lists the median latencies of several runs, the fastest run first."""
    medians = sorted(
        (float(np.median(column_values(group.frames, "total_ms"))), group.name) for group in groups if len(group.frames)
    )
    if not medians:
        return "No frame of any run was answered."
    listed = join_words([f"{milliseconds(p50)} in {name}" for p50, name in medians[:_MAX_RUNS]])
    more = f", and more in {len(medians) - _MAX_RUNS} other runs" if len(medians) > _MAX_RUNS else ""
    return f"Median latency of the answered frames: {listed}{more}. Unanswered frames are not included: see Outcomes."


def study_summary(study: StudyLog) -> str:
    """Describes a study, how its runs ended, and its fastest and slowest cell."""
    states = study.runs["state"].value_counts()
    ended = join_words([f"{count:,} {state}" for state, count in states.items()])
    summary = f"{len(study.runs):,} runs of {len(study.cells):,} cells: {ended}."
    if description := str(study.manifest.get("description") or "").strip().rstrip("."):
        summary = f"{description}. {summary}"
    medians = sorted(
        (float(group.frames["total_ms"].median()), group.name)
        for group in map(study.group, study.cells)
        if len(group.frames)
    )
    if not medians:
        return f"{summary} No frame was answered in the measured time."
    (fastest, first), (slowest, last) = medians[0], medians[-1]
    if len(medians) == 1:
        return f"{summary} Median latency: {milliseconds(fastest)} in {first}."
    return (
        f"{summary} Median latency: {milliseconds(fastest)} in {first} (the fastest cell), {milliseconds(slowest)} in "
        f"{last} (the slowest)."
    )
