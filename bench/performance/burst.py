"""Where the time of a burst goes: frames that all fall due at once, before so many workers.

The distributed video inference that Skylane is compared with splits the latency of its N_R requests to N_S servers as

    T_network + T_client queue + (N_R - N_S) / N_S · T_compute + T_compute

where the third term is the queue before the servers, if each takes its even share. Here the four are measured, by the
stages of the burst's last answer, and the queue is set beside what the formula makes of the same run's T_compute: the
time for which a worker was busy with each of its frames, whether it infers one of them at a time, several, or a batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

import pandas as pd

from bench.harness.busy_time import covered

_CLIENT = ("taken_ms", "demosaiced_ms", "preprocessed_ms", "encoded_ms", "sent_ms", "mask_decoded_ms")
_SERVER_QUEUE = ("dequeued_ms", "decoded_ms", "batched_ms")
_COMPUTE = ("inferred_ms", "postprocessed_ms", "mask_encoded_ms", "replied_ms")


@dataclass(frozen=True, slots=True)
class BurstLatency:
    """The latency of a burst in milliseconds, from its frames' due to its last answer, in four terms that sum to it."""

    frames: int
    workers: int
    network_ms: float
    client_queue_ms: float  # Until the last frame left the vehicle, and what the vehicle did with its answer.
    server_queue_ms: float  # Until its batch began.
    compute_ms: float
    busy_ms: float  # The time in which a worker inferred, over the frames it did: the mean of all workers' frames.

    @property
    def total_ms(self) -> float:
        """All four."""
        return self.network_ms + self.client_queue_ms + self.server_queue_ms + self.compute_ms

    @property
    def queue_ms(self) -> float:
        """Both queues: a vehicle sends no more than the workers take, so that what waits, waits on either side."""
        return self.client_queue_ms + self.server_queue_ms

    @property
    def predicted_queue_ms(self) -> float:
        """The formula's: (N_R - N_S) / N_S · T_compute."""
        return (self.frames - self.workers) / self.workers * self.busy_ms

    @property
    def predicted_ms(self) -> float:
        """The formula's latency, with the network and the compute time as measured."""
        return self.network_ms + self.predicted_queue_ms + self.compute_ms


def split(frames: pd.DataFrame, workers: int) -> BurstLatency:
    """BurstLatency one burst: `frames` are its answered ones, at least one, of all vehicles, with the log's durations."""
    last = frames.loc[frames["total_ms"].idxmax()]
    client, queue, compute = (float(last[[*names]].sum()) for names in (_CLIENT, _SERVER_QUEUE, _COMPUTE))
    return BurstLatency(len(frames), workers, float(last["crossing_ms"]), client, queue, compute, _busy_ms(frames))


def _busy_ms(frames: pd.DataFrame) -> float:
    ended_ns = frames["t_inferred_ns"].astype("int64")
    begun_ns = ended_ns - (frames["inferred_ms"] * 1e6).round().astype("int64")
    spans = pd.DataFrame({"worker": frames["worker"], "begun": begun_ns, "ended": ended_ns})
    busy_ns = sum(
        covered(list(zip(each["begun"], each["ended"], strict=True)))
        for _, each in spans.groupby("worker", dropna=False)
    )
    return busy_ns / 1e6 / len(frames)


def middle(splits: Sequence[BurstLatency]) -> BurstLatency:
    """The split whose latency is the median of several of one cell; the lower of two in the middle."""
    return sorted(splits, key=lambda each: each.total_ms)[(len(splits) - 1) // 2]


def latency_deviation_ms(splits: Sequence[BurstLatency]) -> float:
    """The standard deviation of the latencies of several of one cell; nan of one."""
    return stdev(each.total_ms for each in splits) if len(splits) > 1 else math.nan


def speed_up(splits: Sequence[BurstLatency], alone: Sequence[BurstLatency]) -> float:
    """How many times sooner a burst was answered than by one worker: of the runs that `middle` shows of both."""
    return middle(alone).total_ms / middle(splits).total_ms
