"""The bursts of a study: where their latency went, beside what the formula of their origin predicts."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.performance.burst import BurstLatency, latency_deviation_ms, middle, speed_up, split
from bench.report.content import Part, Prose, Section, Table, numbers, texts
from bench.report.data.study_log import Cell, StudyLog

_TITLE = "Where the time of a burst goes"
_OFFLINE = "offline"  # The scenario in which all frames fall due at once.


def chapter(study: StudyLog) -> Section | None:
    """The four terms of every cell whose frames fell due at once; None where none did."""
    found = {cell.key: splits for cell in study.cells if (splits := _splits(study, cell))}
    if not found:
        return None
    rows = []
    for cell in study.cells:
        if cell.key not in found:
            continue
        shown = middle(found[cell.key])
        alone = _alone(study, cell, found)
        rows.append((
            cell.name, shown.workers, shown.frames, len(found[cell.key]), shown.network_ms, shown.client_queue_ms,
            shown.server_queue_ms, shown.compute_ms, shown.total_ms, latency_deviation_ms(found[cell.key]), shown.predicted_queue_ms,
            shown.predicted_ms / shown.total_ms, speed_up(found[cell.key], alone) if alone else np.nan,
        ))  # fmt: skip
    columns = (
        *texts("cell"),
        *numbers(
            "workers", "frames", "runs", "network ms", "client queue ms", "server queue ms", "compute ms", "latency ms", "± latency ms",
            "queue by the formula ms", "formula / measured", "speed-up",
        ),
    )  # fmt: skip
    caption = (
        "The latency of a burst, from when its frames fell due to its last answer, split by the stages of that last "
        "answer; of several runs the one of median latency. ±: the standard deviation of the runs' latencies, – of one. "
        "Formula: (N_R − N_S) / N_S · T_compute for the queue, with the time that a worker of the run was busy with each "
        "of its frames. Speed-up: one worker's latency over this one's."
    )
    about = Prose(
        "The four terms are those of the distributed video inference of the originals. What waits for a worker waits at "
        "the vehicle or before the worker, as a vehicle sends no more than workers take: compare the sum of both queues "
        "with the formula's. Workers that share one machine share its cores, so that T_compute grows with their number."
    )
    parts: tuple[Part, ...] = (about, Table("bursts", caption, columns, tuple(rows)))
    return Section("bursts", _TITLE, parts)


def _splits(study: StudyLog, cell: Cell) -> list[BurstLatency]:
    """Of each run of a cell whose frames fell due at once."""
    facts = study.runs[(study.runs["cell"] == cell.key) & (study.runs["state"] == "done")]
    known = {"scenario", "workers"} <= set(facts.columns) and len(facts)
    if not known or facts["scenario"].iloc[0] != _OFFLINE or study.frames.empty:
        return []
    frames = study.side(cell).frames
    workers = int(facts["workers"].iloc[0])
    return [split(of_run, workers) for _, of_run in frames.groupby("repetition")]


def _alone(study: StudyLog, cell: Cell, found: Mapping[str, list[BurstLatency]]) -> list[BurstLatency]:
    """The splits of the cell with one worker that is else the same."""

    def else_(other: Cell) -> dict[str, Any]:
        return {axis: value for axis, value in other.settings.items() if axis != "workers"}

    same = [other for other in study.cells if other.key in found and else_(other) == else_(cell)]
    return next((found[other.key] for other in same if found[other.key][0].workers == 1), [])
