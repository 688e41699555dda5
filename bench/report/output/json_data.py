"""Converts the results of a report to JSON data."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from bench.logs.run_log import RunLog
from bench.offloading.cost import throughput_hz
from bench.report.chapters.comparisons.runs import compare_totals
from bench.report.chapters.run.outcomes import outcome_counts
from bench.report.chapters.run.stage_statistics import describe_stages
from bench.report.chapters.run.stages import stage_summaries
from bench.report.data.answered_frames import FrameGroup, answered_frames
from bench.report.data.report_input import ReportInput
from bench.report.data.study_log import StudyLog


def report_json(source: ReportInput) -> dict[str, Any]:
    """Returns the results as JSON data; values that were not measured are None.

    A run has the keys `outcomes`, `stages`, `statistics`, `throughput_hz`, `manifest` and `problems`. Several runs have
    them in `runs`, with `comparisons` of each run with the first. A study has `manifest`, `runs` and `comparisons` by axis.
    """
    problems = {"problems": [str(problem) for problem in source.problems]}
    if source.study:
        return _study(source.study) | problems
    if len(source.runs) == 1:
        return _run(source.runs[0]) | problems
    groups = [group for group in map(FrameGroup.of_run, source.runs) if len(group.frames)]
    comparisons = compare_totals(((groups[0], other) for other in groups[1:]), in_blocks=False)
    return {"runs": [_run(run) for run in source.runs], "comparisons": _json_value(comparisons)} | problems


def _run(run: RunLog) -> dict[str, Any]:
    answered = answered_frames(run.frames)
    return {
        "name": run.name,
        "outcomes": {outcome.value: count for outcome, count in outcome_counts(run.frames).items()},
        "stages": _json_value(stage_summaries(answered)),
        "statistics": _json_value(describe_stages(answered)),
        "throughput_hz": _json_value(throughput_hz(run)),
        "manifest": _manifest(run.manifest),
    }


def _study(study: StudyLog) -> dict[str, Any]:
    by_axis = {
        axis: compare_totals(((study.group(a), study.group(b)) for a, b in study.pairs(axis)), in_blocks=True)
        for axis in (study.axes if len(study.frames) else ())
    }
    runs = [
        {name: _json_value(value) for name, value in row.items()}
        for row in study.runs.astype(object).to_dict("records")
    ]
    return {"manifest": _manifest(study.manifest), "runs": runs, "comparisons": _json_value(by_axis)}


def _manifest(manifest: Mapping[str, Any]) -> Any:
    """Replaces NaN and infinity by None at any depth: only Python's JSON has them."""
    return json.loads(json.dumps(dict(manifest), default=str), parse_constant=lambda _: None)


def _json_value(value: Any) -> Any:
    """Converts dataclasses to maps and NaN to None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
