"""Summarizes a run, several runs or a study in one or two sentences, which stand at the top of the report."""

from collections.abc import Iterable, Sequence

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
from shared.runlog.percentiles import has_percentile

_MAX_RUNS = 6


def run_summary(frames: pd.DataFrame, answered: pd.DataFrame) -> str:
    """Summarizes a run: its outcomes and the longest stage.

    `frames` are all frames of the run; `answered` are the answered ones with all stage durations.
    """
    read, counts = len(frames), outcome_counts(frames)
    if not read:
        return "No frame was read."
    count = counts.pop(Outcome.ANSWERED, 0)
    others = join_words([f"{number:,} {outcome.value}" for outcome, number in counts.items()])
    first = f"{count:,} of {read:,} frames were answered" if count else f"None of {read:,} frames was answered"
    stages = {str(part): float(column_values(answered, f"{part}_ms").sum()) for part in PARTS}
    longest = max(stages, key=lambda stage: stages[stage])
    total = float(column_values(answered, "total_ms").sum())
    spent = f" {share(stages[longest] / total)} of their time was spent in the stage {longest}" if total else ""
    return f"{first}{f' ({others})' if others else ''}.{f'{spent}, in which the frame {STAGES[longest].meaning}.' if spent else ''}"


def key_figures(frames: pd.DataFrame, answered: pd.DataFrame, rate_hz: float) -> tuple[KeyFigure, ...]:
    """Returns the numbers that most readers look for: frames answered, median and 95th percentile, frames per second."""
    read, count = len(frames), outcome_counts(frames).get(Outcome.ANSWERED, 0)
    totals = column_values(answered, "total_ms")
    p50, p95 = (
        milliseconds(float(np.percentile(totals, percent))) if has_percentile(percent, len(totals)) else NOTHING
        for percent in (50, 95)
    )
    of_totals = f"of {len(totals):,} answered frames"
    return (
        KeyFigure("answered", share(count / read) if read else NOTHING, f"{count:,} of {read:,} frames"),
        KeyFigure("median latency (p50)", p50, of_totals),
        KeyFigure("95th percentile (p95)", p95, of_totals),
        KeyFigure("frames per second", number(rate_hz), "answered"),
    )


def runs_summary(groups: Sequence[FrameGroup]) -> str:
    """Lists the median latencies of several runs, the fastest run first."""
    medians = _medians(groups)
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
    medians = _medians(map(study.group, study.cells))
    if not medians:
        return f"{summary} No frame was answered in the measured time."
    (fastest, first), (slowest, last) = medians[0], medians[-1]
    if len(medians) == 1:
        return f"{summary} Median latency: {milliseconds(fastest)} in {first}."
    return (
        f"{summary} Median latency: {milliseconds(fastest)} in {first} (the fastest cell), {milliseconds(slowest)} in "
        f"{last} (the slowest)."
    )


def _medians(groups: Iterable[FrameGroup]) -> list[tuple[float, str]]:
    """Returns the median latency and the name of each group with answered frames, the fastest first."""
    return sorted((float(group.frames["total_ms"].median()), group.name) for group in groups if len(group.frames))
