"""The frames of a run by the worker that answered them, and by the way in which the vehicle chose a worker."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.report.data.answered_frames import column_values
from shared.runlog.percentiles import percentiles


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """The frames that a worker answered; latencies are NaN if the sample is too small."""

    worker: str
    frames: int
    share: float  # Share of the frames answered by all workers.
    inferred_p50_ms: float
    total_p50_ms: float
    total_p99_ms: float
    dispatched: Mapping[str, int]  # Its frames by their value of `dispatch`.


def worker_shares(answered: pd.DataFrame) -> list[WorkerShare]:
    """Returns the share of each worker that answered a frame, by the worker's name."""
    found = []
    for worker, rows in answered.groupby("worker"):
        p50, p99 = percentiles(column_values(rows, "total_ms"), (50, 99))
        (inferred_p50,) = percentiles(column_values(rows, "inferred_ms"), (50,))
        share = len(rows) / len(answered)
        found.append(WorkerShare(str(worker), len(rows), share, inferred_p50, p50, p99, dispatch_counts(rows)))
    return found


def dispatch_counts(frames: pd.DataFrame) -> dict[str, int]:
    """Returns the number of frames with each value of `dispatch`; empty for a log without this column."""
    if "dispatch" not in frames:
        return {}
    counts = frames["dispatch"].value_counts()
    return {str(way): int(counts[way]) for way in sorted(counts.index, reverse=True) if way}
