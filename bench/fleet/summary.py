"""Summarises a fleet's run: throughput, latency, fairness, queues, and what each process used."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import pandas as pd

from analysis.logs.resource_log import load_resources
from analysis.statistics.samples import jain, max_min_shares, spread
from bench.fleet.arrivals import FleetArrivals
from bench.fleet.fleet_run import BROKER_NODE, FLEET_NODE, FleetSettings, FleetTimes
from bench.fleet.frames import FleetFrame, account, read_frames
from bench.fleet.queues import QueueHistory, Span, ideal_latencies_ms
from shared.resources.sampler import MACHINE
from shared.runtime.machine import usable_cores

_WARM_UP = 1 / 3  # Share of a run that is not counted, while the queues fill.
_BUSY = 0.95  # Share of its capacity from which on a part counts as the limit.
_FULL_CORE = 90.0  # Per cent of a core from which on a process that uses one core at a time is the limit.


def capacity_hz(services_ms: Sequence[float]) -> float:
    """Returns the frames per second of workers that are never idle."""
    return sum(1e3 / service_ms for service_ms in services_ms)


def summarise(settings: FleetSettings, times: FleetTimes, alive: Mapping[str, tuple[float, Span]]) -> dict[str, Any]:
    """Returns the JSON record of a run; `alive`: inference time and life of each worker.

    Throughput, latencies, queues and resources count in the last two thirds of the run; outcomes count all frames.
    """
    frames = read_frames(times.folder)
    accounts = account(times.folder)
    span_ns = (times.begin_ns + round(_WARM_UP * (times.end_ns - times.begin_ns)), times.end_ns)
    span_s = (span_ns[1] - span_ns[0]) / 1e9
    due = [frame for frame in frames if span_ns[0] <= frame.due_ns < span_ns[1]]
    done = [frame for frame in frames if frame.is_answered and span_ns[0] <= frame.done_ns < span_ns[1]]
    services_ms = {name: service_ms for name, (service_ms, _) in alive.items()}
    latencies_ms = [frame.latency_ms for frame in due if frame.is_answered]
    history = QueueHistory.of(frames, alive, span_ns)
    resources = _resources(times, span_ns)
    is_open = settings.arrivals is not FleetArrivals.SATURATED
    record = {
        "settings": asdict(settings),
        "workers": services_ms,
        "capacity_hz": capacity_hz(list(services_ms.values())),
        "offered_hz": len(due) / span_s if is_open else None,
        "throughput_hz": len(done) / span_s,
        "latency_ms": {"mean": fmean(latencies_ms), **spread(latencies_ms)} if latencies_ms else None,
        "ideal_ms": _ideal_ms(frames, span_ns, services_ms) if is_open else None,
        "send_delay_ms": spread([(frame.sent_ns - frame.due_ns) / 1e6 for frame in due if frame.sent_ns]),
        "dispatch_cpu_ms": fmean(times.dispatch_cpu_ns) / 1e6 if times.dispatch_cpu_ns else None,
        "jain": _jain(settings, due, done),
        "outcomes": accounts.by_outcome,
        "reasons": dict(accounts.reasons),
        "unaccounted": accounts.unaccounted,
        "accepted_twice": accounts.accepted_twice,
        "retried": accounts.retried,
        "failures": accounts.failures,
        "by_worker": _by_worker(done, services_ms, history, span_s),
        "longest_imbalance_s": history.longest_imbalance_s(),
        "resources": resources,
    }
    record["p99_ratio"] = _p99_ratio(record)
    record["limit"] = limiting_part(record)
    return record


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


def _ideal_ms(frames: Sequence[FleetFrame], span_ns: Span, services_ms: Mapping[str, float]) -> dict[str, Any]:
    arrivals_ns = [frame.due_ns for frame in frames]
    ideal = ideal_latencies_ms(arrivals_ns, list(services_ms.values()))
    return spread([value for value, at_ns in zip(ideal, arrivals_ns, strict=True) if span_ns[0] <= at_ns < span_ns[1]])


def _p99_ratio(record: Mapping[str, Any]) -> float | None:
    """The 99th percentile of the latency divided by that of the ideal queue; None where one is not known."""
    own, ideal = ((record[name] or {}).get("p99") for name in ("latency_ms", "ideal_ms"))
    return own / ideal if own is not None and ideal else None


def _jain(settings: FleetSettings, due: Sequence[FleetFrame], done: Sequence[FleetFrame]) -> float:
    """Jain's index of the vehicles' throughputs, each divided by its max-min fair share."""
    names = [f"vehicle-{number:03d}" for number in range(1, settings.vehicles + 1)]
    answered = Counter(frame.vehicle for frame in done)
    offered = Counter(frame.vehicle for frame in due)
    is_saturated = settings.arrivals is FleetArrivals.SATURATED
    demands = [float(len(done)) if is_saturated else float(offered[name]) for name in names]
    fair = max_min_shares(demands, len(done))
    return jain([answered[name] / share for name, share in zip(names, fair, strict=True) if share])


def _by_worker(
    done: Sequence[FleetFrame], services_ms: Mapping[str, float], history: QueueHistory, span_s: float
) -> dict[str, dict[str, float]]:
    answered = Counter(frame.worker for frame in done)
    return {
        name: {
            "service_ms": services_ms[name],
            "throughput_hz": answered[name] / span_s,
            "busy": answered[name] * services_ms[name] / 1e3 / span_s,
            "mean_queue": float(mean),
            "max_queue": float(longest),
        }
        for name, mean, longest in zip(history.workers, history.means(), history.lengths.max(axis=0), strict=True)
    }


def _resources(times: FleetTimes, span_ns: Span) -> dict[str, dict[str, float | None]]:
    """Mean CPU usage (per cent of a core) and peak resident memory (MB) by node; workers count as one, by their mean."""
    samples, _ = load_resources(times.folder)
    samples = samples[(samples["at_ns"] >= span_ns[0]) & (samples["at_ns"] <= span_ns[1])]
    usages: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for node, group in samples.groupby("node"):
        name = "worker" if str(node).startswith("worker/") else str(node)
        usages[name].append((float(group["cpu_percent"].mean()), float(group["rss_bytes"].max()) / 1e6))
    return {
        name: {
            "cpu_percent": None if any(map(pd.isna, (cpu for cpu, _ in found))) else fmean(cpu for cpu, _ in found),
            "rss_mb": max(rss for _, rss in found),
        }
        for name, found in usages.items()
    }
