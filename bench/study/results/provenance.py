"""Where a study comes from: its manifest, so that every figure can be traced and the study repeated."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.study.execution.cell_run import DONE, FAILED, SKIPPED, Result
from bench.study.plan.study_plan import Plan, cells, values_of
from shared import clock
from shared.hashing import file_sha256
from shared.runtime.machine import commit, machine

RUNNING, COMPLETE, INTERRUPTED = "running", "complete", "interrupted"


def begun(plan: Plan, file: Path, seed: int, planned: int) -> dict[str, Any]:
    """The manifest as a study begins."""
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
        "axes": values_of(cells(plan)),
        **({} if plan.report.price_per_hour is None else {"tariff": plan.report.model_dump()}),
        "planned": planned,
        **counts(()),
    }


def at_end(manifest: dict[str, Any], results: Iterable[Result], state: str) -> dict[str, Any]:
    """The manifest as a study ends, or is interrupted."""
    return {**manifest, "state": state, "ended_ns": clock.now_ns(), **counts(results)}


def counts(results: Iterable[Result]) -> dict[str, int]:
    """How many runs ended how."""
    found = dict.fromkeys((DONE, SKIPPED, FAILED), 0)
    for result in results:
        found[result.state] += 1
    return found
