"""Builds the report of a run, several runs or a study, and writes it as an HTML page."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.logs.run_log import RunLog, frames_not_sent, frames_with_result, load_run
from analysis.offloading import throughput_hz
from analysis.report.chapters import streaming
from analysis.report.chapters.comparisons import cost, offloading
from analysis.report.chapters.comparisons import runs as comparison
from analysis.report.chapters.comparisons.cost import Tariff
from analysis.report.chapters.run import (
    clocks,
    distribution,
    load,
    outcomes,
    provenance,
    resources,
    stages,
    timeline,
    unsent,
    workers,
)
from analysis.report.chapters.run.outcomes import outcome_counts
from analysis.report.chapters.study import accuracy, bursts, cells, overhead, utilization
from analysis.report.content import Chapter, KeyFigure, Picture, ReportContent, join_words
from analysis.report.data.answered_frames import (
    FrameGroup,
    answered_frames,
    column_values,
    first_due_ns,
    part_durations,
    parts_in,
    timed_results,
)
from analysis.report.data.frame_details import frame_details, frames_on_page, overlay_images
from analysis.report.data.report_input import ReportInput, StudyLog, load_report_input
from analysis.report.output.number_format import NOTHING, milliseconds, number, share
from analysis.report.output.page import render
from analysis.report.stage_styles import STAGES
from shared.errors import SkylaneError
from shared.files import write_file
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import has_percentile

_SAMPLE_IMAGES = 12  # Images of frames that are not among the slowest.


class ReportError(SkylaneError):
    """The report cannot be written."""


def write_report(
    folders: Sequence[Path], out: Path | None = None, tariff: Tariff | None = None, local: Path | None = None
) -> Path:
    """Writes the report of run folders, or of one study folder, as one HTML file; returns its path.

    The default of `out` is report.html in the folder, or comparison.html in the first of several folders.

    Raises:
        LogError: A log cannot be read.
        ReportError: The file cannot be written.
    """
    source = load_report_input(folders, load_run(local) if local else None)
    return write_page(report_of(source, tariff), folders, out)


def write_page(report: ReportContent, folders: Sequence[Path], out: Path | None) -> Path:
    """Writes a report as HTML; see `write_report`."""
    path = out or folders[0] / ("report.html" if len(folders) == 1 else "comparison.html")
    try:
        write_file(path, render(report), folders[0])
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror}: choose another --out") from error
    return path


def report_of(source: ReportInput, tariff: Tariff | None = None) -> ReportContent:
    """Returns the report of a run, several runs or a study; `tariff` adds the cost (None: that of a study's manifest)."""
    if source.study:
        return _study_report(source.study, tariff)
    return _run_report(source, tariff) if len(source.runs) == 1 else _comparison_report(source, tariff)


def _run_report(source: ReportInput, tariff: Tariff | None) -> ReportContent:
    (run,) = source.runs
    frames = run.frames
    answered = answered_frames(frames)
    start_ns = first_due_ns(frames)
    shown = frames_on_page(frames)
    chapters = (
        stages.chapter(answered),
        outcomes.chapter(run),
        *map(streaming.chapter, source.streaming),
        *unsent.chapters(run),
        distribution.chapter(frames),
        timeline.chapter(shown, answered, start_ns),
        load.chapter(frames, answered, start_ns),
        load.throughput_chapter(run, start_ns),
        *workers.chapters(frames, answered, start_ns),
        clocks.chapter(answered, start_ns),
        resources.chapter(run.resources),
        distribution.statistics_chapter(frames, answered),
        *_optional_chapters(source, tariff),
        provenance.consistency(source.problems, len(frames)),
        provenance.chapter(run),
    )
    samples = answered["sequence"].iloc[:: max(1, len(answered) // _SAMPLE_IMAGES)]
    with_image = dict.fromkeys([*timeline.slowest(answered)["sequence"], *samples])
    images = overlay_images(run.folder, map(int, with_image))
    details = frame_details(shown, answered, start_ns, images)
    figures = [figure for each in source.streaming for figure in streaming.key_figures(each)]
    figures += key_figures(frames, throughput_hz(run))
    return ReportContent(
        _title(run), run_summary(frames, answered), chapters, details, tuple(figures), _picture(run, answered)
    )


def _picture(run: RunLog, answered: pd.DataFrame) -> Picture | None:
    """Returns the overlay of the frame in the middle of the run, or of the first with a readable one."""
    sequences = answered["sequence"].tolist()
    for sequence in [*sequences[len(sequences) // 2 :], *sequences]:
        if images := overlay_images(run.folder, [sequence]):
            caption = f"Frame {sequence}: the model's input with its result drawn on it."
            return Picture(images[sequence], caption)
    return None


def _title(run: RunLog) -> str:
    """Returns the name of the run with its vehicle and date, if known."""
    vehicle = run.manifest.get("vehicle")
    start_ns = first_due_ns(run.frames)
    parts = (
        f"Run {run.name}",
        f"vehicle {vehicle}" if isinstance(vehicle, str) else "",
        f"{datetime.fromtimestamp(start_ns / 1e9, UTC):%Y-%m-%d}" if start_ns else "",
    )
    return ", ".join(filter(None, parts))


def _comparison_report(source: ReportInput, tariff: Tariff | None) -> ReportContent:
    """Compares each run with the first."""
    runs = source.runs
    groups = [FrameGroup.of_run(run) for run in runs]
    chapters = (
        comparison.chapter(groups),
        outcomes.comparison(runs),
        *([streaming.comparison(source.streaming)] if source.streaming else []),
        comparison.stages(groups),
        comparison.distributions(groups),
        *_optional_chapters(source, tariff),
        provenance.consistency(source.problems, sum(len(run.frames) for run in runs)),
        provenance.comparison(runs),
    )
    return ReportContent(f"Comparison of {len(runs)} runs", runs_summary(groups), chapters)


def _study_report(study: StudyLog, tariff: Tariff | None) -> ReportContent:
    """Returns the report of a study; without `tariff`, the tariff in the study's manifest applies."""
    chapters = [cells.results(study), cells.axes(study)]
    if len(study.capacity):
        chapters.append(cells.capacity(study))
    optional = (
        accuracy.streaming_chapter(study),
        accuracy.chapter(study),
        overhead.chapter(study),
        bursts.chapter(study),
        utilization.chapter(study),
        offloading.study_chapter(study),
    )
    chapters += filter(None, optional)
    if len(study.results):
        groups = [study.group(cell) for cell in study.cells]
        chapters += [comparison.stages(groups), comparison.distributions(groups)]
    if tariff := tariff or Tariff.from_manifest(study.manifest):
        runs = study.runs.reindex(columns=["cell", "throughput_hz"])
        rates = [(cell.name, runs.loc[runs["cell"] == cell.key, "throughput_hz"]) for cell in study.cells]
        chapters.append(cost.chapter(rates, tariff))
    chapters += [cells.runs(study), cells.provenance(study)]
    name = str(study.manifest.get("name") or study.folder.name)
    return ReportContent(f"Study {name}", study_summary(study), tuple(chapters))


def _optional_chapters(source: ReportInput, tariff: Tariff | None) -> Iterator[Chapter]:
    if tariff:
        yield cost.chapter([(run.name, [throughput_hz(run)]) for run in source.runs], tariff)
    if source.local:
        yield offloading.chapter(source.local, source.runs)


_MAX_RUNS = 6


_NOT_SENT_TEXTS = {
    Outcome.REUSED: "got the result of an earlier frame",
    Outcome.ANSWERED_LOCALLY: "were answered by the vehicle's own model",
}


def run_summary(frames: pd.DataFrame, answered: pd.DataFrame) -> str:
    """Summarizes a run: its outcomes and the stage that took the most time in all.

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
