"""Converts the results of a report to JSON data."""

import json
from dataclasses import asdict, is_dataclass
from typing import Any

from analysis.logs.run_log import RunLog
from analysis.offloading.cost import throughput_hz
from analysis.report.chapters.comparisons.runs import compare_totals
from analysis.report.chapters.run.distribution import describe_stages
from analysis.report.chapters.run.outcomes import outcome_counts
from analysis.report.chapters.run.stages import stage_summaries
from analysis.report.chapters.run.workers import worker_shares
from analysis.report.chapters.streaming import streaming_json
from analysis.report.data.answered_frames import FrameGroup, answered_frames
from analysis.report.data.report_input import ReportInput
from analysis.report.data.study_log import StudyLog
from analysis.report.data.unsent_frames import origin_summaries


def report_json(source: ReportInput) -> Any:
    """Returns the results as JSON data; values that were not measured are None.

    A run has the keys `outcomes`, `origins`, `workers`, `stages`, `statistics`, `throughput_hz`, `manifest` and `problems`,
    and `streaming` if true labels were given. Several runs have them in `runs`, with `comparisons` of each run with the first. A study has `manifest`, `runs` and `comparisons` by axis.
    """
    results = {**_results(source), "problems": [str(problem) for problem in source.problems]}
    # Only Python's JSON has NaN and infinity.
    return json.loads(json.dumps(results, default=_plain), parse_constant=lambda _: None)


def _results(source: ReportInput) -> dict[str, Any]:
    if source.study:
        return _study(source.study)
    if len(source.runs) == 1:
        return _runs(source)[0]
    groups = [group for group in map(FrameGroup.of_run, source.runs) if len(group.results)]
    comparisons = compare_totals(((groups[0], other) for other in groups[1:]), in_blocks=False)
    return {"runs": _runs(source), "comparisons": comparisons}


def _runs(source: ReportInput) -> list[dict[str, Any]]:
    streaming = [{"streaming": streaming_json(accuracy)} for accuracy in source.streaming] or [{}] * len(source.runs)
    return [_run(run) | scored for run, scored in zip(source.runs, streaming, strict=True)]


def _run(run: RunLog) -> dict[str, Any]:
    answered = answered_frames(run.frames)
    return {
        "name": run.name,
        "outcomes": {outcome.value: count for outcome, count in outcome_counts(run.frames).items()},
        "origins": origin_summaries(run.frames),
        "workers": worker_shares(answered),
        "stages": stage_summaries(answered),
        "statistics": describe_stages(answered),
        "throughput_hz": throughput_hz(run),
        "manifest": dict(run.manifest),
    }


def _study(study: StudyLog) -> dict[str, Any]:
    by_axis = {
        axis: compare_totals(((study.group(a), study.group(b)) for a, b in study.pairs(axis)), in_blocks=True)
        for axis in (study.axes if len(study.results) else ())
    }
    runs = study.runs.astype(object).to_dict("records")
    return {"manifest": dict(study.manifest), "runs": runs, "comparisons": by_axis}


def _plain(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
