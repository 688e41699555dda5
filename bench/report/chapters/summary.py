"""A run in one sentence: what was answered, how fast, and what the time went into."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bench.report.chapters.run.outcomes import counts
from bench.report.content import joined
from bench.report.data.answered_frames import column
from bench.report.data.study_log import StudyLog
from bench.report.output.number_format import milliseconds, share
from shared.runlog.latency_log import Outcome
from shared.runlog.latency_table import PARTS

_MOST_TOLD = 6
_LEAST = 20  # Frames from which on one in twenty is a frame.
_NAMES = {
    "inferred": "the model",
    "crossing": "broker and link",
    "taken": "waiting at the vehicle",
    "dequeued": "waiting at the worker",
    "batched": "waiting for the engine",
}


def verdict(frames: pd.DataFrame, known: pd.DataFrame) -> str:
    """The sentence. `frames`: all of a run; `known`: those answered, with all their stages."""
    read, found = len(frames), counts(frames)
    if not read:
        return "No frame was read."
    count = found.get(Outcome.ANSWERED, 0)
    others = joined(
        [f"{number:,} {outcome.value}" for outcome, number in found.items() if outcome is not Outcome.ANSWERED]
    )
    first = f"{count:,} of {read:,} frames answered" if count else f"None of {read:,} frames was answered"
    if others:
        first += f" ({others})"
    of_those = "of those, " if others else ""
    return f"{first}; {of_those}{_pace(known)}." if len(known) else f"{first}."


def _pace(known: pd.DataFrame) -> str:
    totals = column(known, "total_ms")
    p50, p95 = (float(value) for value in np.percentile(totals, (50, 95)))
    summed = {str(part): float(column(known, f"{part}_ms").sum()) for part in PARTS}
    most = max(summed, key=lambda part: summed[part])
    most_of = (
        f"95 % within {milliseconds(p95)}" if len(totals) >= _LEAST else f"all within {milliseconds(totals.max())}"
    )
    told = f"half within {milliseconds(p50)}, {most_of}"
    whole = float(totals.sum())
    return f"{told}; {share(summed[most] / whole)} of the time is {_NAMES.get(most, most)}" if whole else told


def verdict_of_study(study: StudyLog) -> str:
    """What a study was about, how its runs ended, and its fastest and slowest cell."""
    states = study.runs["state"].value_counts()
    ended = joined([f"{count:,} {state}" for state, count in states.items()])
    told = f"{len(study.runs):,} runs of {len(study.cells):,} cells: {ended}."
    if description := str(study.manifest.get("description") or "").strip().rstrip("."):
        told = f"{description}. {told}"
    medians = sorted(
        (float(side.frames["total_ms"].median()), side.name)
        for side in map(study.side, study.cells)
        if len(side.frames)
    )
    if not medians:
        return f"{told} No frame was answered in the measured time."
    (fastest, first), (slowest, last) = medians[0], medians[-1]
    told += f" Half the answered frames within {milliseconds(fastest)} in {first}"
    return (
        f"{told}, the fastest cell; within {milliseconds(slowest)} in {last}, the slowest."
        if len(medians) > 1
        else f"{told}."
    )


def verdict_of_several(runs: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """The medians of several runs, the fastest first. `runs`: name and answered frames of each."""
    medians = sorted((float(np.median(column(known, "total_ms"))), name) for name, known in runs if len(known))
    if not medians:
        return "No frame of any run was answered."
    told = joined([f"{milliseconds(p50)} in {name}" for p50, name in medians[:_MOST_TOLD]])
    more = f", and more in {len(medians) - _MOST_TOLD} others" if len(medians) > _MOST_TOLD else ""
    return (
        f"Half the answered frames took at most {told}{more}; what was not answered is in no such figure: see Outcomes."
    )
