"""Splits the latency of a burst, frames that are all due at once for a number of workers, for the report of a study.

The distributed video inference system that Skylane is compared with splits the latency of N_R requests to N_S servers as

    T_network + T_client queue + (N_R - N_S) / N_S · T_compute + T_compute

where the third term is the queue in front of the servers if each takes an equal share. Here the four terms are measured
with the stages of the burst's last result, and the measured queue is compared with the formula's. N_R counts the frames that
were sent and answered; frames that a gate or a local model kept from being sent only take time at the vehicle. For T_compute
in the queue, the time for which a worker was busy per frame is used, whether it infers one at a time, concurrently or in
batches.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

import pandas as pd

from analysis.statistics.samples import busy_time
from shared.runlog.latency_log import Outcome

_VEHICLE_WORK = ("demosaiced_ms", "preprocessed_ms", "gated_ms", "inferred_locally_ms", "encoded_ms")
_CLIENT = ("taken_ms", *_VEHICLE_WORK, "sent_ms", "mask_decoded_ms")
_SERVER_QUEUE = ("dequeued_ms", "decoded_ms", "batched_ms")
_COMPUTE = ("inferred_ms", "postprocessed_ms", "mask_encoded_ms", "replied_ms")


@dataclass(frozen=True, slots=True)
class BurstLatency:
    """The latency of a burst in milliseconds, from the time its frames were due to its last result, in four terms."""

    frames: int  # Frames that got a result.
    sent: int  # Of them, those answered by a worker: the requests N_R of the formula.
    workers: int
    network_ms: float
    client_queue_ms: float  # Until the last frame was sent (or got its result at the vehicle), and decoding its reply.
    server_queue_ms: float  # Until the batch of the last frame began.
    compute_ms: float
    busy_ms: float  # Time for which a worker was busy per frame, mean of all workers; 0 if no frame was sent.
    vehicle_ms: (
        float  # Time for which the vehicles worked on all frames: gate, local model and everything before sending.
    )

    @property
    def total_ms(self) -> float:
        """The sum of the four terms."""
        return self.network_ms + self.client_queue_ms + self.server_queue_ms + self.compute_ms

    @property
    def predicted_queue_ms(self) -> float:
        """The queue of the formula: (N_R - N_S) / N_S · T_compute, 0 for fewer requests than workers."""
        return max(0, self.sent - self.workers) / self.workers * self.busy_ms

    @property
    def predicted_ms(self) -> float:
        """The latency of the formula, with the measured network and compute times."""
        return self.network_ms + self.predicted_queue_ms + self.compute_ms

    @property
    def rate_hz(self) -> float:
        """Results per second, of all origins."""
        return 1e3 * self.frames / self.total_ms if self.total_ms else math.nan


def split_burst(frames: pd.DataFrame, workers: int) -> BurstLatency:
    """Splits one burst; `frames`: rows of the latency log with a result from all vehicles, at least one.

    The terms are those of the last result. If the vehicle got it without a worker, it only waited at the vehicle.
    """
    last = frames.loc[frames["total_ms"].idxmax()]
    answered = frames[frames["outcome"] == Outcome.ANSWERED]
    work = frames.reindex(columns=[*_VEHICLE_WORK]).astype(float).sum().sum()
    network, client, queue, compute = (
        float(last.reindex([*names]).astype(float).sum())
        for names in (("crossing_ms",), _CLIENT, _SERVER_QUEUE, _COMPUTE)
    )
    return BurstLatency(
        len(frames), len(answered), workers, network, client, queue, compute, _busy_ms(answered), float(work)
    )


def _busy_ms(frames: pd.DataFrame) -> float:
    if frames.empty:
        return 0.0
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
