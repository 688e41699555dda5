"""The record of a fleet's run: throughput, latency, fairness, the workers' queues, and what each process used.

A queue contains the frames that a worker has received and not answered yet, the one in its engine included. The times
at which it received and answered each frame show it.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.logs.frame_accounting import FrameAccounts
from analysis.logs.run_log import load_resources
from analysis.statistics.bootstrap import Floats
from analysis.statistics.samples import jain, max_min_shares, spread
from shared.resources.sampler import MACHINE
from shared.runlog.latency_log import Outcome, read_rows
from shared.runtime.machine import usable_cores

FLEET_NODE, BROKER_NODE = "vehicle/fleet", "broker"
Times = npt.NDArray[np.int64]
Span = tuple[int, int]  # Begin and end, in nanoseconds.

_VEHICLE_FOLDERS = "vehicle-*"
_TIME_COLUMNS = {
    "due_ns": "t_due_ns",
    "sent_ns": "t_sent_ns",
    "received_ns": "t_received_ns",
    "batched_ns": "t_batched_ns",
    "inferred_ns": "t_inferred_ns",
    "replied_ns": "t_replied_ns",
    "returned_ns": "t_returned_ns",
    "done_ns": "t_mask_decoded_ns",
}
_WARM_UP = 1 / 3  # Share of a run that is not counted, while the queues fill.
_BUSY = 0.95  # Share of its capacity from which on a part counts as the limit.
_FULL_CORE = 90.0  # Per cent of a core from which on a process that uses one core at a time is the limit.
_LARGEST_RATIO = 2.0  # Time that a worker needs for its queue, divided by the mean of all: above it, it is unbalanced.
_WINDOW_NS = 500_000_000  # Queues and shares after an event are means over this time.
_STEP_NS = 50_000_000
_SHARE = 0.8  # A worker that joined has its share from this part of a fair share on.


def read_frames(folder: Path) -> pd.DataFrame:
    """Returns the frames of all vehicles, in the order in which they were due.

    The columns are `vehicle`, `outcome`, `worker` (the one that replied; empty without a reply), and times in nanoseconds by
    the clock of the fleet: `due_ns`, `sent_ns`, `received_ns` and `replied_ns` (at the worker), `returned_ns` and `done_ns`, and
    by the worker's clock: `batched_ns` and `inferred_ns`; 0 if the frame did not get that far.

    Raises:
        LogError: a log is missing.
    """
    rows = pd.DataFrame(row for vehicle in sorted(folder.glob(_VEHICLE_FOLDERS)) for row in read_rows(vehicle))
    frames = rows[["vehicle", "outcome", "worker"]].copy()
    for name, column in _TIME_COLUMNS.items():
        frames[name] = rows[column].replace("", "0").astype(np.int64)
    # The worker's clock minus ours.
    offset_ns = (rows["clock_offset_ms"].replace("", "0").astype(float) * 1e6).round().astype(np.int64)
    for name in ("received_ns", "replied_ns"):
        frames[name] -= offset_ns.where(frames[name] != 0, 0)
    return frames.sort_values("due_ns", kind="stable", ignore_index=True)


def summarise(
    settings: Mapping[str, Any],
    folder: Path,
    frames: pd.DataFrame,
    alive: Mapping[str, tuple[float, Span]],
    run_ns: Span,
    *,
    is_open: bool,
) -> dict[str, Any]:
    """Returns the measured part of a run's JSON record.

    Throughput, latencies, queues and resources count in the last two thirds of the run; outcomes count all frames.

    Args:
        settings: Number of `vehicles` and other settings, which the record contains.
        folder: Folder with the logs.
        frames: All frames, as read from the logs.
        alive: Inference time and life of each worker.
        run_ns: Begin and end of the run.
        is_open: Whether the vehicles send by a schedule, not whenever their window has room.
    """
    accounts = FrameAccounts()
    for vehicle in sorted(folder.glob(_VEHICLE_FOLDERS)):
        accounts.add(vehicle)
    span_ns = (run_ns[0] + round(_WARM_UP * (run_ns[1] - run_ns[0])), run_ns[1])
    span_s = (span_ns[1] - span_ns[0]) / 1e9
    due = frames[_within(frames["due_ns"], span_ns)]
    done = frames[(frames["outcome"] == Outcome.ANSWERED) & _within(frames["done_ns"], span_ns)]
    worker_ms = {name: service_ms for name, (service_ms, _) in alive.items()}
    in_time, sent = due[due["outcome"] == Outcome.ANSWERED], due[due["sent_ns"] > 0]
    latencies_ms = ((in_time["done_ns"] - in_time["due_ns"]) / 1e6).tolist()
    latency_ms = {"mean": fmean(latencies_ms), **spread(latencies_ms)} if latencies_ms else None
    ideal_ms = _ideal_ms(frames["due_ns"], span_ns, worker_ms) if is_open else None
    history = QueueHistory.of(frames, alive, span_ns)
    record = {
        "settings": settings,
        "workers": worker_ms,
        "capacity_hz": capacity_hz(list(worker_ms.values())),
        "offered_hz": len(due) / span_s if is_open else None,
        "throughput_hz": len(done) / span_s,
        "latency_ms": latency_ms,
        "ideal_ms": ideal_ms,
        "p99_ratio": _ratio(latency_ms, ideal_ms),
        "send_delay_ms": spread(((sent["sent_ns"] - sent["due_ns"]) / 1e6).tolist()),
        "jain": _jain(settings["vehicles"], due, done, is_open=is_open),
        "outcomes": accounts.by_outcome,
        "reasons": dict(accounts.reasons),
        "unaccounted": accounts.unaccounted,
        "accepted_twice": accounts.accepted_twice,
        "retried": accounts.retried,
        "failures": accounts.failures,
        "by_worker": _by_worker(done, worker_ms, history, span_s),
        "longest_imbalance_s": history.longest_imbalance_s(),
        "resources": _resources(folder, span_ns),
    }
    return {**record, "limit": limiting_part(record)}


def capacity_hz(worker_ms: Sequence[float]) -> float:
    """Returns the frames per second of workers that are never idle."""
    return sum(1e3 / service_ms for service_ms in worker_ms)


def limiting_part(record: Mapping[str, Any]) -> str:
    """Names the part of a run that was at its limit: workers, broker, the fleet's process, the machine, or the window.

    The window is the limit if all parts have time left: the vehicles may not send, because of frames at a slow worker or
    because their windows are small.
    """
    cpu = {node: usage["cpu_percent"] or 0.0 for node, usage in record["resources"].items()}
    if record["throughput_hz"] >= _BUSY * record["capacity_hz"]:
        return "workers"
    if cpu.get(BROKER_NODE, 0.0) >= _FULL_CORE:
        return "broker"
    if cpu.get(FLEET_NODE, 0.0) >= _FULL_CORE:
        return "fleet"
    if cpu.get(MACHINE, 0.0) >= _FULL_CORE * usable_cores():
        return "machine"
    offered_hz = record["offered_hz"]
    return "none" if offered_hz is not None and record["throughput_hz"] >= _BUSY * offered_hz else "window"


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """The queues as step functions. `lengths[i, j]` is the queue of worker j from `times_ns[i]` to the next time."""

    workers: tuple[str, ...]
    times_ns: Times
    lengths: Floats
    services_ms: Floats  # The inference time of each worker.
    is_alive: npt.NDArray[np.bool_]  # Shape of `lengths`; False before a worker joined, and after it was killed.

    @classmethod
    def of(cls, frames: pd.DataFrame, alive: Mapping[str, tuple[float, Span]], span_ns: Span) -> "QueueHistory":
        """Reconstructs the queues from the frames that got a reply; `alive`: inference time and life of each worker."""
        workers, alive_ns = tuple(alive), [life for _, life in alive.values()]
        replied = frames[(frames["replied_ns"] > 0) & frames["worker"].isin(workers)]
        at_ns = np.concatenate([replied["received_ns"], replied["replied_ns"]])
        marks = [mark_ns for span in (*alive_ns, span_ns) for mark_ns in span]
        times_ns = np.unique(np.concatenate([at_ns, np.array(marks, np.int64)]))
        changes = np.zeros((len(times_ns), len(workers)))
        columns = np.tile(pd.Index(workers).get_indexer(replied["worker"]), 2)
        np.add.at(changes, (np.searchsorted(times_ns, at_ns), columns), np.repeat([1, -1], len(replied)))
        begins, ends = np.array(alive_ns, np.int64).T
        is_alive = (times_ns[:, None] >= begins) & (times_ns[:, None] < ends)
        is_inside = (times_ns >= span_ns[0]) & (times_ns <= span_ns[1])
        lengths, services_ms = np.cumsum(changes, axis=0), np.array([service_ms for service_ms, _ in alive.values()])
        return cls(workers, times_ns[is_inside], lengths[is_inside], services_ms, is_alive[is_inside])

    def means(self, span_ns: Span | None = None) -> Floats:
        """Returns the mean queue of each worker over a time, by default over all."""
        begin_ns, end_ns = span_ns or (int(self.times_ns[0]), int(self.times_ns[-1]))
        edges = np.clip(np.append(self.times_ns, max(end_ns, self.times_ns[-1])), begin_ns, end_ns)
        spent_ns = np.diff(edges)[:, None]
        means: Floats = (self.lengths * spent_ns).sum(axis=0) / max(1, end_ns - begin_ns)
        return means

    def longest_imbalance_s(self) -> float:
        """Returns the longest time for which one worker needed over twice the mean of all workers for its queue."""
        waits_ms = self.lengths * self.services_ms
        alive = np.where(self.is_alive, waits_ms, 0.0)
        mean = alive.sum(axis=1) / np.maximum(1, self.is_alive.sum(axis=1))
        is_above = self.is_alive & (waits_ms > _LARGEST_RATIO * mean[:, None])
        longest_ns = 0
        for place in range(len(self.workers)):
            begin_ns: int | None = None
            for at_ns, above in zip(self.times_ns.tolist(), is_above[:, place].tolist(), strict=True):
                if begin_ns is not None:
                    longest_ns = max(longest_ns, at_ns - begin_ns)
                begin_ns = (at_ns if begin_ns is None else begin_ns) if above else None
        return longest_ns / 1e9

    def balanced_after_ms(self, event_ns: int) -> float | None:
        """Returns the time from an event until the load is balanced; None if it is not until the end.

        It is balanced if over half a second every worker needs between half and twice the mean of all for its queue; less if
        it would answer one more frame only after that mean. Unequal workers then have unequal queues.
        """
        for begin_ns in range(event_ns, int(self.times_ns[-1]) - _WINDOW_NS, _STEP_NS):
            is_alive = self.is_alive[np.searchsorted(self.times_ns, begin_ns, side="right") - 1]
            services_ms = self.services_ms[is_alive]
            waits_ms = self.means((begin_ns, begin_ns + _WINDOW_NS))[is_alive] * services_ms
            mean_ms = waits_ms.mean()
            has_enough = (waits_ms >= mean_ms / _LARGEST_RATIO) | (waits_ms + services_ms >= mean_ms)
            if waits_ms.max() <= _LARGEST_RATIO * mean_ms and has_enough.all():
                return (begin_ns - event_ns) / 1e6
        return None


def share_after_ms(frames: pd.DataFrame, worker: str, workers: int, joined_ns: int) -> float | None:
    """Returns the time from which on a worker that joined receives its share of the frames; None if it never does.

    It has its share if it receives at least 0.8 / `workers` of all frames of half a second.
    """
    received = frames[frames["received_ns"] > 0].sort_values("received_ns")
    times_ns = received["received_ns"].to_numpy()
    own = np.concatenate([[0], np.cumsum(received["worker"] == worker)])
    for begin_ns in range(joined_ns, int(times_ns[-1]) - _WINDOW_NS, _STEP_NS):
        first, last = np.searchsorted(times_ns, [begin_ns, begin_ns + _WINDOW_NS])
        if last > first and (own[last] - own[first]) / (last - first) >= _SHARE / workers:
            return (begin_ns - joined_ns) / 1e6
    return None


def ideal_latencies_ms(arrivals_ns: Sequence[int], services_ms: Sequence[float]) -> list[float]:
    """Simulates one FCFS queue; returns the time from arrival to the end of the service of each frame.

    A frame is served by the fastest server that is free at its turn. `arrivals_ns` must be sorted; `services_ms` contains
    the service time of each server.
    """
    services_ns = sorted(round(service_ms * 1e6) for service_ms in services_ms)
    free = list(range(len(services_ns)))  # A heap of free servers, the fastest first.
    busy: list[tuple[int, int]] = []  # A heap of the ends of services, each with its server.
    latencies_ms = []
    for arrived_ns in arrivals_ns:
        start_ns = arrived_ns if free else max(arrived_ns, busy[0][0])
        while busy and busy[0][0] <= start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        server = heapq.heappop(free)
        end_ns = start_ns + services_ns[server]
        heapq.heappush(busy, (end_ns, server))
        latencies_ms.append((end_ns - arrived_ns) / 1e6)
    return latencies_ms


def _within(times_ns: pd.Series, span_ns: Span) -> pd.Series:
    return (times_ns >= span_ns[0]) & (times_ns < span_ns[1])


def _ideal_ms(arrivals_ns: pd.Series, span_ns: Span, worker_ms: Mapping[str, float]) -> dict[str, Any]:
    ideal = np.array(ideal_latencies_ms(arrivals_ns.tolist(), list(worker_ms.values())))
    return spread(ideal[_within(arrivals_ns, span_ns)].tolist())


def _ratio(own: Mapping[str, Any] | None, ideal: Mapping[str, Any] | None) -> float | None:
    """The 99th percentile of the latency divided by that of the ideal queue; None where one is not known."""
    own_ms, ideal_ms = ((each or {}).get("p99") for each in (own, ideal))
    return own_ms / ideal_ms if own_ms is not None and ideal_ms else None


def _jain(vehicles: int, due: pd.DataFrame, done: pd.DataFrame, *, is_open: bool) -> float:
    """Jain's index of the vehicles' throughputs, each divided by its max-min fair share."""
    names = [f"vehicle-{number:03d}" for number in range(1, vehicles + 1)]
    answered, offered = (frames["vehicle"].value_counts() for frames in (done, due))
    fair = max_min_shares([float(offered.get(name, 0) if is_open else len(done)) for name in names], len(done))
    return jain([answered.get(name, 0) / share for name, share in zip(names, fair, strict=True) if share])


def _by_worker(
    done: pd.DataFrame, worker_ms: Mapping[str, float], history: QueueHistory, span_s: float
) -> dict[str, dict[str, float]]:
    answered = done["worker"].value_counts().to_dict()
    return {
        name: {
            "service_ms": worker_ms[name],
            "throughput_hz": answered.get(name, 0) / span_s,
            "busy": answered.get(name, 0) * worker_ms[name] / 1e3 / span_s,
            "mean_queue": float(mean),
            "max_queue": float(longest),
        }
        for name, mean, longest in zip(history.workers, history.means(), history.lengths.max(axis=0), strict=True)
    }


def _resources(folder: Path, span_ns: Span) -> dict[str, dict[str, float | None]]:
    """Mean CPU usage (per cent of a core) and peak resident memory (MB) by node; workers count as one, by their mean."""
    samples, _ = load_resources(folder)
    samples = samples[(samples["at_ns"] >= span_ns[0]) & (samples["at_ns"] <= span_ns[1])]
    usages: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for node, group in samples.groupby("node"):
        name = "worker" if str(node).startswith("worker/") else str(node)
        usages[name].append((float(group["cpu_percent"].mean()), float(group["rss_bytes"].max()) / 1e6))
    return {
        name: {
            "cpu_percent": None if any(pd.isna(cpu) for cpu, _ in found) else fmean(cpu for cpu, _ in found),
            "rss_mb": max(rss for _, rss in found),
        }
        for name, found in usages.items()
    }
