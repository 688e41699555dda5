"""Splits the latency of a burst, frames that are all due at once for a number of workers, for the report of a study.

The distributed video inference system that Skylane is compared with splits the latency of N_R requests to N_S servers as

    T_network + T_client queue + (N_R - N_S) / N_S · T_compute + T_compute

where the third term is the queue in front of the servers if each takes an equal share. Here the four terms are measured
with the stages of the burst's last reply, and the measured queue is compared with the formula's. For T_compute in the
queue, the time for which a worker was busy per frame is used, whether it infers one at a time, concurrently or in batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

import pandas as pd

from bench.harness.samples import busy_time

_CLIENT = ("taken_ms", "demosaiced_ms", "preprocessed_ms", "encoded_ms", "sent_ms", "mask_decoded_ms")
_SERVER_QUEUE = ("dequeued_ms", "decoded_ms", "batched_ms")
_COMPUTE = ("inferred_ms", "postprocessed_ms", "mask_encoded_ms", "replied_ms")


@dataclass(frozen=True, slots=True)
class BurstLatency:
    """The latency of a burst in milliseconds, from the time its frames were due to its last reply, in four terms."""

    frames: int
    workers: int
    network_ms: float
    client_queue_ms: float  # Until the last frame was sent, and the decoding of its reply.
    server_queue_ms: float  # Until the batch of the last frame began.
    compute_ms: float
    busy_ms: float  # Time for which a worker was busy per frame, mean of all workers.

    @property
    def total_ms(self) -> float:
        """The sum of the four terms."""
        return self.network_ms + self.client_queue_ms + self.server_queue_ms + self.compute_ms

    @property
    def predicted_queue_ms(self) -> float:
        """The queue of the formula: (N_R - N_S) / N_S · T_compute."""
        return (self.frames - self.workers) / self.workers * self.busy_ms

    @property
    def predicted_ms(self) -> float:
        """The latency of the formula, with the measured network and compute times."""
        return self.network_ms + self.predicted_queue_ms + self.compute_ms


def split_burst(frames: pd.DataFrame, workers: int) -> BurstLatency:
    """Splits one burst; `frames`: answered rows of the latency log from all vehicles, at least one."""
    last = frames.loc[frames["total_ms"].idxmax()]
    client, queue, compute = (float(last[[*names]].sum()) for names in (_CLIENT, _SERVER_QUEUE, _COMPUTE))
    return BurstLatency(len(frames), workers, float(last["crossing_ms"]), client, queue, compute, _busy_ms(frames))


def _busy_ms(frames: pd.DataFrame) -> float:
    end_ns = frames["t_inferred_ns"].astype("int64")
    begin_ns = end_ns - (frames["inferred_ms"] * 1e6).round().astype("int64")
    spans = pd.DataFrame({"worker": frames["worker"], "begin": begin_ns, "end": end_ns})
    busy_ns = sum(
        busy_time(list(zip(each["begin"], each["end"], strict=True)))
        for _, each in spans.groupby("worker", dropna=False)
    )
    return busy_ns / 1e6 / len(frames)


def median_burst(bursts: Sequence[BurstLatency]) -> BurstLatency:
    """The burst with the median latency; of an even number, the lower of the two in the middle."""
    return sorted(bursts, key=lambda each: each.total_ms)[(len(bursts) - 1) // 2]


def latency_deviation_ms(bursts: Sequence[BurstLatency]) -> float:
    """The standard deviation of the latencies; nan for a single burst."""
    return stdev(each.total_ms for each in bursts) if len(bursts) > 1 else math.nan


def speed_up(bursts: Sequence[BurstLatency], one_worker: Sequence[BurstLatency]) -> float:
    """The median latency with one worker divided by that of these bursts."""
    return median_burst(one_worker).total_ms / median_burst(bursts).total_ms
