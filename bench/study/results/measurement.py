"""What a run showed: its frames in phases, and the figures of the runs' table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.logs.run_log import RunLog, load_run
from bench.study.execution.fleet import RunError
from bench.study.plan.scenarios import MultiStreamRules, RunLength
from shared.runlog.latency_log import CSV_NAME, Outcome
from shared.runlog.percentiles import has_percentile

WARM_UP, MEASURED, COOL_DOWN = "warm_up", "measured", "cool_down"
_NS_IN_S = 1e9
_SEEN = 0.5  # Of the periods between the samples, what has to lie in the time they are to tell of.
_PERCENTILES = {"total_p50_ms": 50, "total_p90_ms": 90, "total_p95_ms": 95, "total_p99_ms": 99}


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """A run: `frames` has all rows of all vehicles, with `vehicle_run` and `phase`; the time in which all of them ran."""

    frames: pd.DataFrame
    manifest: Mapping[str, Any]  # Of the first vehicle.
    began_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """The measured time."""
        return (self.ended_ns - self.began_ns) / _NS_IN_S

    @property
    def measured(self) -> pd.DataFrame:
        """The rows of the measured phase."""
        return self.frames[self.frames["phase"] == MEASURED]

    @property
    def answered(self) -> pd.DataFrame:
        """Those of them that were answered."""
        return self.measured[self.measured["outcome"] == Outcome.ANSWERED]

    @property
    def unanswered_share(self) -> float:
        """The share of measured frames that were not answered."""
        return 1.0 - len(self.answered) / len(self.measured)

    def queries_ms(self, size: int) -> pd.Series:
        """The latency of each whole query of `size` frames in a row: that of its last answer; NaN where one lacks."""
        rows = self.measured
        query = [rows["vehicle_run"], rows["sequence"].astype("int64") // size]
        groups = rows["total_ms"].astype("float64").groupby(query)
        whole = groups.size() == size
        return groups.max().where(groups.count() == size)[whole]


def measure(folder: Path, vehicles: int, warm_up: int, *, whole: bool = False) -> RunMeasurement:
    """Read the vehicles' runs in `folder` and tell the phases of their frames.

    With several vehicles the measured time is that in which all of them run: it begins when the last of them has its
    `warm_up` frames behind it, and ends when the first of them ends. A frame is measured if it fell due in that time;
    when it was answered plays no part, or the slow ones would be left out. `whole`: where nothing warms up, every frame
    is measured, from the first due of any vehicle until the last of them ends: a worker's first frame is one vehicle's,
    and a burst falls due at once, before the last vehicle has begun.

    Raises:
        LogError: a vehicle's log cannot be read.
        RunError: it has bad rows, or there was no time in which all vehicles ran.
    """
    logs = {f"vehicle-{number}": load_run(folder / f"vehicle-{number}") for number in range(1, vehicles + 1)}
    for log in logs.values():
        broken = [problem for problem in log.problems if problem.file.name == CSV_NAME]
        if broken:
            raise RunError(f"{broken[0]}{f' (and {len(broken) - 1} more)' if len(broken) > 1 else ''}")
    spans = [_span(log, warm_up) for log in logs.values()]
    began_ns, ended_ns = max(span[0] for span in spans), min(span[1] for span in spans)
    if began_ns >= ended_ns:
        raise RunError("there was no time in which all vehicles ran: raise frames")
    if whole:
        began_ns, ended_ns = min(span[0] for span in spans), max(span[1] for span in spans)
    parts = []
    for name, log in logs.items():
        frames = log.frames.assign(vehicle_run=name)
        due = frames["t_due_ns"]
        early = ((frames["sequence"] < warm_up) | (due < began_ns)).to_numpy(bool, na_value=False)
        late = (due > ended_ns).to_numpy(bool, na_value=False)
        frames["phase"] = np.select([early, late], [WARM_UP, COOL_DOWN], MEASURED)
        parts.append(frames)
    return RunMeasurement(pd.concat(parts, ignore_index=True), next(iter(logs.values())).manifest, began_ns, ended_ns)


def _span(log: RunLog, warm_up: int) -> tuple[int, int]:
    """When a vehicle has its warm-up behind it, and when it ends: nanoseconds."""
    counted = log.frames[log.frames["sequence"] >= warm_up]
    if counted.empty:
        raise RunError(f"{log.name} read {len(log.frames)} frames, of which {warm_up} warm up: none is measured")
    return int(counted["t_due_ns"].min()), int(counted[["t_due_ns", "t_mask_decoded_ns"]].max().max())


def run_metrics(run: RunMeasurement, settings: RunLength) -> dict[str, Any]:
    """The figures of a run; what was not measured is None.

    Outcomes count all frames read; latencies, bytes and throughput are those of the measured phase. Throughput is what
    came back answered in the measured time, per second.
    """
    read, answered = run.frames, run.answered
    outcomes = read["outcome"].value_counts()
    back = read.loc[read["outcome"] == Outcome.ANSWERED, "t_mask_decoded_ns"]
    in_time = back.between(run.began_ns, run.ended_ns, inclusive="right").sum()
    total = answered["total_ms"].astype("float64")
    queries = run.queries_ms(settings.samples_per_query) if isinstance(settings, MultiStreamRules) else total[:0]
    return {
        "started_ns": int(read["t_due_ns"].min()),
        "measured_s": run.seconds,
        "frames_read": len(read),
        "frames_measured": len(run.measured),
        **{outcome.value: int(outcomes.get(outcome.value, 0)) for outcome in Outcome},
        "throughput_hz": float(in_time) / run.seconds,
        "total_mean_ms": _mean(total),
        **{name: _percentile(total, percentile) for name, percentile in _PERCENTILES.items()},
        "query_p99_ms": _percentile(queries, 99) if queries.notna().all() else None,
        "inferred_p50_ms": _percentile(answered["inferred_ms"], 50),
        "crossing_p50_ms": _percentile(answered["crossing_ms"], 50),
        "bytes_up": int(answered["bytes_up"].sum()),
        "bytes_down": int(answered["bytes_down"].sum()),
    }


def tail_latency(run: RunMeasurement) -> tuple[str, float | None]:
    """The figure that a limit on p99 is held to, with its name; None where no frame was answered.

    With fewer than 100 frames that is the slowest of them: a single late one is then more than 1 %.
    """
    total = run.answered["total_ms"].astype("float64")
    if has_percentile(99, len(total)):
        return "p99", _percentile(total, 99)
    return "slowest frame", float(total.max()) if len(total) else None


def run_provenance(run: RunMeasurement) -> dict[str, Any]:
    """What the run was made of, as its first vehicle's manifest tells."""
    manifest = run.manifest
    host = dict(manifest.get("host", {}))
    facts = {name: host.pop(name, None) for name in ("processor", "cores", "system")}
    return {
        "model_sha256": manifest.get("model", {}).get("sha256"),
        "source_sha256": manifest.get("source", {}).get("sha256"),
        "commit": manifest.get("commit"),
        **facts,
        **{f"version_{name.replace('-', '_')}": host.get(name) for name in VERSIONS},
    }


VERSIONS = ("skylane", "python", "tensorflow", "numpy", "opencv-python-headless", "paho-mqtt", "msgpack", "rosbags")


def resource_usage(path: Path, began_ns: int, ended_ns: int) -> dict[str, float | None]:
    """What the nodes took in a time, from a file of resources: mean CPU, greatest memory; workers, vehicles, GPUs summed.

    CPU is in percent of one core, a GPU's of the time that it was busy, memory in 10^6 bytes. A sample tells of the period since the one before it, and weighs
    as much as that lies in the time. None where nothing was sampled, and no mean where the periods lie outside for the
    most part: a vehicle that starts and ends between two samples was seen only as it started.
    """
    try:
        samples = pd.read_csv(path).reindex(columns=_SAMPLED)
    except (OSError, ValueError):
        return dict.fromkeys(USAGE_COLUMNS)
    at_ns = samples["at_ns"] - began_ns  # Small enough for floats, which the gap before a first sample makes of them.
    before_ns = at_ns.groupby(samples["node"]).shift()
    samples = samples.assign(
        lasted_ns=at_ns - before_ns, inside_ns=at_ns.clip(upper=ended_ns - began_ns) - before_ns.clip(lower=0)
    )
    inside = samples[samples["inside_ns"] > 0]
    cpu, gpu = (_means(inside, name) for name in ("cpu_percent", "gpu_percent"))
    rss, held = (inside.groupby("node")[name].max() / 1e6 for name in ("rss_bytes", "gpu_memory_bytes"))
    return {
        "worker_cpu_percent": _summed(cpu, "worker/"),
        "worker_rss_mb": _summed(rss, "worker/"),
        "vehicle_cpu_percent": _summed(cpu, "vehicle/"),
        "vehicle_rss_mb": _summed(rss, "vehicle/"),
        "broker_cpu_percent": _summed(cpu, "broker"),
        "gpu_percent": _summed(gpu, "gpu/"),
        "gpu_memory_mb": _summed(held, "gpu/"),
    }


USAGE_COLUMNS = (
    "worker_cpu_percent", "worker_rss_mb", "vehicle_cpu_percent", "vehicle_rss_mb", "broker_cpu_percent", "gpu_percent",
    "gpu_memory_mb",
)  # fmt: skip


_SAMPLED = ("at_ns", "node", "cpu_percent", "rss_bytes", "gpu_percent", "gpu_memory_bytes")


def _means(inside: pd.DataFrame, name: str) -> pd.Series:
    """The mean of a column by node, each sample by its time inside; none where the periods lie outside for the most part."""
    by_node = inside[inside[name].notna()].groupby("node")
    told = by_node.filter(lambda node: node["inside_ns"].sum() >= _SEEN * node["lasted_ns"].sum())
    weighed = told.assign(weighed=told[name] * told["inside_ns"]).groupby("node")
    return weighed["weighed"].sum() / weighed["inside_ns"].sum()


def _summed(values: pd.Series, prefix: str) -> float | None:
    found = values[[str(node).startswith(prefix) for node in values.index]].dropna()
    return float(found.sum()) if len(found) else None


def _mean(values: pd.Series) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: pd.Series, percent: float) -> float | None:
    """A percentile with linear interpolation; None where the sample is too small for it (shared.runlog.percentiles)."""
    numbers = values.dropna().to_numpy(float)
    return float(np.percentile(numbers, percent)) if has_percentile(percent, len(numbers)) else None
