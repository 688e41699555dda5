"""Splits the latency of bursts in a study, frames that are all due at once, into four terms, and compares a formula with it.

The distributed video inference system that Skylane is compared with splits the latency of N_R requests to N_S servers as

    T_network + T_client queue + (N_R - N_S) / N_S · T_compute + T_compute

where the third term is the queue in front of the servers if each takes an equal share. Here the four terms are measured
with the stages of the burst's last result, and the measured queue is compared with the formula's. N_R counts the frames that
were sent and answered; frames that a gate or a local model kept from being sent only take time at the vehicle. For T_compute
in the queue, the time for which a worker was busy per frame is used, whether it infers one at a time, concurrently or in
batches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev
from typing import Any

import numpy as np
import pandas as pd

from analysis.report.content import Chapter, Paragraph, ReportTable, TableRow
from analysis.report.data.report_input import ReportedCell, StudyLog
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
        """The latency of the formula: measured network and compute times, and the predicted queue in place of both measured ones."""
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


_BURSTS = ("offline", "one_per_worker")  # The scenarios whose frames are due at once, or as soon as they can be sent.


def chapter(study: StudyLog) -> Chapter | None:
    """Returns the four terms of every cell of the scenarios `offline` and `one_per_worker`; None if there is no such cell."""
    splits = {cell.key: found for cell in study.cells if (found := _splits(study, cell))}
    if not splits:
        return None
    totals: list[TableRow] = []
    terms: list[TableRow] = []
    for cell in study.cells:
        if cell.key not in splits:
            continue
        runs = splits[cell.key]
        shown = median_burst(runs)
        single_worker = _single_worker_splits(study, cell, splits)
        totals.append((
            cell.name, shown.workers, shown.frames, shown.sent, len(runs), shown.total_ms, latency_deviation_ms(runs),
            shown.rate_hz, speed_up(runs, single_worker) if single_worker else np.nan,
        ))  # fmt: skip
        terms.append((
            cell.name, shown.network_ms, shown.client_queue_ms, shown.server_queue_ms, shown.compute_ms, shown.vehicle_ms,
            shown.predicted_queue_ms, shown.predicted_ms / shown.total_ms,
        ))  # fmt: skip
    introduction = Paragraph(
        "The four terms are those of the original distributed video inference. A vehicle sends no more frames than the "
        "workers accept, so frames wait both at the vehicle (client queue) and at the worker (server queue): compare the "
        "sum of both with the formula. Workers on the same machine share its cores, so that T_compute grows with the "
        "number of workers."
    )
    return Chapter("bursts", "Burst latency", (introduction, _totals_table(totals), _terms_table(terms)))


def _totals_table(rows: Sequence[TableRow]) -> ReportTable:
    headings = (
        "cell", "workers", "frames", "sent", "runs", "latency ms", "± latency ms", "results a second", "speed-up",
    )  # fmt: skip
    caption = (
        "Latency of a burst, from the due time of its first frame to its last result, and the number of its frames that "
        "were sent. If a cell has several runs, the run with the median latency is shown. ±: standard deviation of the "
        "runs' latencies, – for one run. Speed-up: latency with one worker over latency of this cell."
    )
    return ReportTable("bursts", caption, headings, rows)


def _terms_table(rows: Sequence[TableRow]) -> ReportTable:
    headings = (
        "cell", "network ms", "client queue ms", "server queue ms", "compute ms", "vehicle work ms",
        "queue by the formula ms", "formula / measured",
    )  # fmt: skip
    caption = (
        "The same latencies, split by the stages of the last result; one that a vehicle got without a worker waited only in "
        "the client queue. Vehicle work: time that the vehicles spent on all frames before they were sent or had a result, "
        "with gate and local model. Formula: the queue time is (N_R − N_S) / N_S · T_compute, where N_R are the frames that "
        "were sent, and T_compute is the mean time for which a worker of the run was busy with a frame."
    )
    return ReportTable("burst_terms", caption, headings, rows)


def _splits(study: StudyLog, cell: ReportedCell) -> list[BurstLatency]:
    """Returns the split of each run of a cell; empty if its frames were not due at once."""
    runs = study.runs[(study.runs["cell"] == cell.key) & (study.runs["state"] == "done")]
    has_columns = {"scenario", "workers"} <= set(runs.columns) and len(runs)
    if not has_columns or runs["scenario"].iloc[0] not in _BURSTS or study.results.empty:
        return []
    workers = int(runs["workers"].iloc[0])
    return [split_burst(run_frames, workers) for _, run_frames in study.group(cell).results.groupby("repetition")]


def _single_worker_splits(
    study: StudyLog, cell: ReportedCell, splits: Mapping[str, list[BurstLatency]]
) -> list[BurstLatency]:
    """Returns the splits of the cell with one worker and otherwise the same settings; empty if there is none."""

    def other_settings(other: ReportedCell) -> dict[str, Any]:
        return {axis: value for axis, value in other.plan.items() if axis != "workers"}

    same = [each for each in study.cells if each.key in splits and other_settings(each) == other_settings(cell)]
    return next((splits[each.key] for each in same if splits[each.key][0].workers == 1), [])
