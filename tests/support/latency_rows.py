"""Rows of frames that were answered, for logs of runs that never took place."""

from typing import Any

from shared.clock import Offset
from shared.runlog.latency_log import LatencyRow, Outcome
from shared.stages import CLOUD_STAGES, EDGE_STAGES, OPTIONAL_STAGES, Stage

_STEP_NS = 1000  # Time between two timestamps of a node, except the stage that takes the whole time.


def answered_row(due_ns: int, total_ns: int, **facts: Any) -> LatencyRow:
    """Returns the row of a frame that a worker with the same clock answered; `facts`: its other fields."""
    stages = [stage for stage in EDGE_STAGES if stage not in OPTIONAL_STAGES]
    edge = {stage: due_ns + index * _STEP_NS for index, stage in enumerate(stages)}
    edge[Stage.MASK_DECODED] = due_ns + total_ns
    edge[Stage.RETURNED] = edge[Stage.MASK_DECODED] - _STEP_NS
    cloud = {stage: edge[Stage.SENT] + (index + 1) * _STEP_NS for index, stage in enumerate(CLOUD_STAGES)}
    sent = {"attempts": 1, "worker": "worker-1", "batch_size": 1, "bytes_up": 1000, "bytes_down": 100}
    given: dict[str, Any] = {**sent, "clock": Offset(0, 500), **facts}
    return LatencyRow(outcome=Outcome.ANSWERED, edge_times=edge, cloud_times=cloud, **given)
