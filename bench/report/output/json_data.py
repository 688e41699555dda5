"""The figures of a report as plain data, for JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from bench.logs.run_log import RunLog
from bench.offloading.cost import throughput_hz
from bench.report.chapters.comparisons.runs import Side, compared
from bench.report.chapters.run.outcomes import counts
from bench.report.chapters.run.stage_statistics import describe_stages
from bench.report.chapters.run.stages import summaries
from bench.report.data.answered_frames import answered
from bench.report.data.report_input import Subject
from bench.report.data.study_log import StudyLog


def plain(subject: Subject) -> dict[str, Any]:
    """The figures; what was not measured, or cannot be told, is None.

    Of one run: `outcomes`, `stages`, `statistics`, `throughput_hz`, `manifest`, `problems`; of several the same in
    `runs`, and `comparisons` of each against the first; of a study `manifest`, `runs` and `comparisons` by axis.
    """
    if subject.study:
        return {**_study(subject.study), "problems": [str(problem) for problem in subject.problems]}
    problems = [str(problem) for problem in subject.problems]
    if len(subject.runs) == 1:
        return {**_run(subject.runs[0]), "problems": problems}
    sides = [side for side in map(Side.of, subject.runs) if len(side.frames)]
    found = compared(((sides[0], other) for other in sides[1:]), in_blocks=False)
    return {"runs": [_run(run) for run in subject.runs], "comparisons": _known(found), "problems": problems}


def _run(run: RunLog) -> dict[str, Any]:
    known = answered(run.frames)
    return {
        "name": run.name,
        "outcomes": {outcome.value: count for outcome, count in counts(run.frames).items()},
        "stages": _known(summaries(known)),
        "statistics": _known(describe_stages(known)),
        "throughput_hz": _known(throughput_hz(run)),
        "manifest": _strict(run.manifest),
    }


def _study(study: StudyLog) -> dict[str, Any]:
    by_axis = {
        axis: compared(((study.side(a), study.side(b)) for a, b in study.pairs(axis)), in_blocks=True)
        for axis in (study.axes if len(study.frames) else ())
    }
    runs = [
        {name: _known(value) for name, value in row.items()} for row in study.runs.astype(object).to_dict("records")
    ]
    return {"manifest": _strict(study.manifest), "runs": runs, "comparisons": _known(by_axis)}


def _strict(manifest: Mapping[str, Any]) -> Any:
    """A manifest, however deep, with None for the numbers that are none: Python's JSON knows NaN, no other does."""
    return json.loads(json.dumps(dict(manifest), default=str), parse_constant=lambda _: None)


def _known(value: Any) -> Any:
    """Records as maps, and nan as None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _known(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _known(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_known(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
