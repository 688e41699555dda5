"""What a fault cost those who waited: how long until frames that were sent again had their mask."""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from shared.runlog.latency_log import Outcome

_MS = 1e6  # In nanoseconds.


def recovery_ms(rows: Iterable[Mapping[str, str]], faults_ns: Sequence[int]) -> list[float]:
    """How long each frame that was sent again had to wait for its mask, from the fault or from its first sending.

    The later of the two; of the faults, in their order, it is the last before the mask came.
    """
    waits = []
    for row in rows:
        if row["outcome"] != Outcome.ANSWERED or not float(row["retry_wait_ms"]):
            continue
        came_ns = int(row["t_mask_decoded_ns"])
        first_sent_ns = int(row["t_sent_ns"]) - float(row["retry_wait_ms"]) * _MS
        fault_ns = faults_ns[max(0, bisect.bisect(faults_ns, came_ns) - 1)]
        waits.append((came_ns - max(fault_ns, first_sent_ns)) / _MS)
    return waits


def longest_gap_ms(rows: Iterable[Mapping[str, str]]) -> float:
    """The longest time between two answers; 0 where there are not two."""
    came_ns = sorted(int(row["t_mask_decoded_ns"]) for row in rows if row["outcome"] == Outcome.ANSWERED)
    return max((later - earlier for earlier, later in pairwise(came_ns)), default=0) / _MS
