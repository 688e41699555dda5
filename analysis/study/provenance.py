"""The manifest of a study, which documents its origin and makes it repeatable."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from analysis.study.measurement import DONE, FAILED, SKIPPED, RunResult
from analysis.study.study_plan import StudyPlan, axis_values, cells
from shared import clock
from shared.files import file_sha256
from shared.runtime.machine import commit, machine

RUNNING, COMPLETE, INTERRUPTED = "running", "complete", "interrupted"


def initial_manifest(plan: StudyPlan, file: Path, seed: int, planned: int) -> dict[str, Any]:
    """Returns the manifest at the start of a study."""
    return {
        "kind": "study",
        "name": plan.name,
        "description": plan.description,
        "seed": seed,
        "state": RUNNING,
        "started_ns": clock.now_ns(),
        "ended_ns": None,
        "commit": commit(),
        "host": machine(),
        "file": str(file),
        "file_sha256": file_sha256(file),
        "axes": axis_values(cells(plan)),
        **({} if plan.report.price_per_hour is None else {"tariff": plan.report.model_dump()}),
        "planned": planned,
        **state_counts(()),
    }


def final_manifest(manifest: dict[str, Any], results: Iterable[RunResult], state: str) -> dict[str, Any]:
    """Returns the manifest at the end or interruption of a study."""
    return {**manifest, "state": state, "ended_ns": clock.now_ns(), **state_counts(results)}


def state_counts(results: Iterable[RunResult]) -> dict[str, int]:
    """Returns the number of runs in each final state."""
    states = [result.state for result in results]
    return {state: states.count(state) for state in (DONE, SKIPPED, FAILED)}
