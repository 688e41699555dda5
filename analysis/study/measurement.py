"""Measures a run: divides its frames into phases, computes its row in the table of runs, and judges it by MLPerf's rules.

The defaults of the rules are those of MLPerf Inference (mlperf.conf of its load generator): 600 s in every scenario, 662
queries of 8 samples in the multi-stream scenario, and 24,576 samples in the offline scenario. For scenarios in which MLPerf
stops early, the default is the smallest number of queries that allows it: with n queries of which t exceed a percentile p,
P(X ≤ t | n, 1 − p) ≤ 0.01 must hold for a binomial X. This takes 64 queries for a 90th percentile (t = 1) and 459 to show
that 99 % are within the limit (t = 0). A valid run is not an MLPerf result, because model, data and accuracy differ.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom

from analysis.logs.run_log import RunLog, frames_with_result, load_run, result_times_ns
from analysis.study.scenarios import (
    SCENARIOS,
    MultiStreamRules,
    OfflineRules,
    RunLength,
    ServerRules,
    SingleStreamRules,
    ValidityRules,
)
from analysis.study.study_plan import StudyCell
from shared.errors import SkylaneError
from shared.files import read_file
from shared.runlog.latency_log import CSV_NAME, Outcome
from shared.runlog.percentiles import has_percentile

WARM_UP, MEASURED, COOL_DOWN = "warm_up", "measured", "cool_down"
_NS_IN_S = 1e9
_MIN_COVERED_SHARE = 0.5  # Minimum share of the sampled periods that lies in the measured time, for a mean.
_PERCENTILES = {"total_p50_ms": 50, "total_p90_ms": 90, "total_p95_ms": 95, "total_p99_ms": 99}


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """The frames and the measured time of a run."""

    frames: pd.DataFrame  # All rows of all vehicles, with the columns `vehicle_run` and `phase`.
    manifest: Mapping[str, Any]  # The manifest of the first vehicle.
    began_ns: int
    ended_ns: int
    accuracy: Mapping[str, Any] = field(default_factory=dict)  # Columns of the table of runs; empty if not asked for.

    @property
    def seconds(self) -> float:
        """Length of the measured time."""
        return (self.ended_ns - self.began_ns) / _NS_IN_S

    @property
    def measured(self) -> pd.DataFrame:
        """The frames of the measured phase."""
        return self.frames[self.frames["phase"] == MEASURED]

    @property
    def results(self) -> pd.DataFrame:
        """The frames of the measured phase with a result of any origin."""
        return frames_with_result(self.measured)

    @property
    def unanswered_share(self) -> float:
        """Share of the measured frames that got no result."""
        return 1.0 - len(self.results) / len(self.measured)

    @property
    def served_by(self) -> dict[str, str]:
        """The worker's engine and precision by axis, from the first answered frame; empty if the log has none."""
        answered = self.frames.loc[self.frames["outcome"] == Outcome.ANSWERED, "engine"].dropna()
        return dict(zip(("engine", "precision"), str(answered.iloc[0]).split(), strict=False)) if len(answered) else {}

    def queries_ms(self, size: int) -> pd.Series:
        """Returns the latency of each complete query: the maximum of its `size` frames, NaN if one was not answered."""
        rows = self.measured
        query = [rows["vehicle_run"], rows["sequence"].astype("int64") // size]
        groups = rows["total_ms"].astype("float64").groupby(query)
        is_complete = groups.size() == size
        return groups.max().where(groups.count() == size)[is_complete]


def measure(folder: Path, vehicles: int, warm_up: int, *, every_frame: bool = False) -> RunMeasurement:
    """Reads the runs of all vehicles in `folder` and assigns a phase to each frame.

    The measured time is the time in which all vehicles run: from the end of the last vehicle's warm-up to the end of the
    first vehicle. A frame is measured if it was due in this time, regardless of when it was answered; otherwise slow
    frames would be excluded. With `every_frame` (scenarios without warm-up), all frames are measured, from the first due
    frame of any vehicle to the end of the last one: only one vehicle sends a worker's first frame, and the frames of a
    burst are due before the last vehicle has started.

    Raises:
        LogError: The log of a vehicle cannot be read.
        RunError: A log has invalid rows or no frame after the warm-up, or there is no time in which all vehicles ran.
    """
    logs = {f"vehicle-{number}": load_run(folder / f"vehicle-{number}") for number in range(1, vehicles + 1)}
    for log in logs.values():
        broken = [problem for problem in log.problems if problem.file.name == CSV_NAME]
        if broken:
            raise RunError(f"{broken[0]}{f' (and {len(broken) - 1} more)' if len(broken) > 1 else ''}")
    spans = [_span(log, warm_up) for log in logs.values()]
    began_ns, ended_ns = max(span[0] for span in spans), min(span[1] for span in spans)
    if began_ns >= ended_ns:
        raise RunError("there was no time in which all vehicles ran: increase frames")
    if every_frame:
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
    """Returns the end of a vehicle's warm-up and its last event, in nanoseconds."""
    counted = log.frames[log.frames["sequence"] >= warm_up]
    if counted.empty:
        raise RunError(
            f"{log.name} read {len(log.frames)} frames, but the warm-up takes {warm_up}: no frame is measured"
        )
    events = (counted["t_due_ns"], counted["t_mask_decoded_ns"], result_times_ns(frames_with_result(counted)))
    return int(counted["t_due_ns"].min()), int(pd.concat(events).max())


def run_metrics(run: RunMeasurement, settings: RunLength) -> dict[str, Any]:
    """Returns the metrics of a run by column; None where nothing was measured.

    Outcomes count all frames read; latencies and bytes are those of the measured phase and of results of any origin.
    Throughput counts the results of the measured time; a frame that was not sent has 0 bytes.
    """
    read, results = run.frames, run.results
    outcomes = read["outcome"].value_counts()
    times_ns = result_times_ns(frames_with_result(read))
    in_time = times_ns.between(run.began_ns, run.ended_ns, inclusive="right").sum()
    total = results["total_ms"].astype("float64")
    queries = run.queries_ms(settings.samples_per_query) if isinstance(settings, MultiStreamRules) else total[:0]
    return {
        "started_ns": int(read["t_due_ns"].min()),
        "measured_s": run.seconds,
        "frames_read": len(read),
        "frames_measured": len(run.measured),
        **{outcome.value: int(outcomes.get(outcome.value, 0)) for outcome in Outcome},
        "frames_sent": int((read["attempts"] > 0).sum()),
        "throughput_hz": float(in_time) / run.seconds,
        "total_mean_ms": _mean(total),
        **{name: _percentile(total, percentile) for name, percentile in _PERCENTILES.items()},
        "query_p99_ms": _percentile(queries, 99) if queries.notna().all() else None,
        "inferred_p50_ms": _percentile(results["inferred_ms"], 50),
        "crossing_p50_ms": _percentile(results["crossing_ms"], 50),
        "bytes_up": int(results["bytes_up"].sum()),
        "bytes_down": int(results["bytes_down"].sum()),
        "bytes_per_frame": _mean((results["bytes_up"] + results["bytes_down"]).astype("float64")),
        **run.accuracy,
    }


def tail_latency(run: RunMeasurement) -> tuple[str, float | None]:
    """Returns name and value of the latency to compare with a limit on p99; None if no frame got a result.

    For fewer than 100 frames it is the slowest one, because a single late frame is then more than 1 %.
    """
    total = run.results["total_ms"].astype("float64")
    if has_percentile(99, len(total)):
        return "p99", _percentile(total, 99)
    return "slowest frame", float(total.max()) if len(total) else None


def run_provenance(run: RunMeasurement) -> dict[str, Any]:
    """Returns engine and precision of the first answer; model, source, commit, machine and versions of the manifest."""
    manifest = run.manifest
    host = dict(manifest.get("host", {}))
    facts = {name: host.pop(name, None) for name in ("processor", "cores", "system")}
    return {
        **run.served_by,
        "model_sha256": manifest.get("model", {}).get("sha256"),
        "source_sha256": manifest.get("source", {}).get("sha256"),
        "commit": manifest.get("commit"),
        **facts,
        **{f"version_{name.replace('-', '_')}": host.get(name) for name in VERSIONS},
    }


VERSIONS = ("skylane", "python", "tensorflow", "numpy", "opencv-python-headless", "paho-mqtt", "msgpack", "rosbags")


def resource_usage(path: Path, began_ns: int, ended_ns: int) -> dict[str, float | None]:
    """Returns mean CPU and maximum memory in a time span by column (USAGE_COLUMNS), from a file of resource samples.

    Values are summed over workers, over vehicles and over GPUs.

    CPU is in percent of one core, GPU in percent of the time it was busy, memory in 10^6 bytes. A sample describes the
    period since the previous sample and is weighted by the part of this period inside the time span. Values are None
    without samples. There is no mean if most of the sampled periods lie outside, as for a vehicle that starts and ends
    between two samples.
    """
    try:
        samples = pd.read_csv(io.BytesIO(read_file(path))).reindex(columns=_SAMPLED)
    except (OSError, ValueError):
        return dict.fromkeys(USAGE_COLUMNS)
    at_ns = samples["at_ns"] - began_ns  # Small enough to stay exact as floats, which shift() needs for its NaN.
    before_ns = at_ns.groupby(samples["node"]).shift()
    samples = samples.assign(
        lasted_ns=at_ns - before_ns, inside_ns=at_ns.clip(upper=ended_ns - began_ns) - before_ns.clip(lower=0)
    )
    inside = samples[samples["inside_ns"] > 0]
    by_node = {
        "cpu_percent": _weighted_means(inside, "cpu_percent"),
        "gpu_percent": _weighted_means(inside, "gpu_percent"),
        "rss_mb": inside.groupby("node")["rss_bytes"].max() / 1e6,
        "memory_mb": inside.groupby("node")["gpu_memory_bytes"].max() / 1e6,
    }
    return {column: _sum_of(by_node[name], prefix) for column, (name, prefix) in _USAGE.items()}


_USAGE = {  # What a column sums up, and the prefix of its nodes.
    "worker_cpu_percent": ("cpu_percent", "worker/"),
    "worker_rss_mb": ("rss_mb", "worker/"),
    "vehicle_cpu_percent": ("cpu_percent", "vehicle/"),
    "vehicle_rss_mb": ("rss_mb", "vehicle/"),
    "broker_cpu_percent": ("cpu_percent", "broker"),
    "gpu_percent": ("gpu_percent", "gpu/"),
    "gpu_memory_mb": ("memory_mb", "gpu/"),
}
USAGE_COLUMNS = tuple(_USAGE)
_SAMPLED = ("at_ns", "node", "cpu_percent", "rss_bytes", "gpu_percent", "gpu_memory_bytes")


def _weighted_means(inside: pd.DataFrame, name: str) -> pd.Series:
    """Returns the mean of a column by node, without nodes whose sampled periods lie mostly outside."""
    by_node = inside[inside[name].notna()].groupby("node")
    covered = by_node.filter(lambda node: node["inside_ns"].sum() >= _MIN_COVERED_SHARE * node["lasted_ns"].sum())
    weighted = covered.assign(weighted=covered[name] * covered["inside_ns"]).groupby("node")
    return weighted["weighted"].sum() / weighted["inside_ns"].sum()


def _sum_of(values: pd.Series, prefix: str) -> float | None:
    """Returns the sum over the nodes whose names start with `prefix`; None if there is no such node."""
    found = values[[str(node).startswith(prefix) for node in values.index]].dropna()
    return float(found.sum()) if len(found) else None


def _mean(values: pd.Series) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: pd.Series, percent: float) -> float | None:
    """Returns a linearly interpolated percentile; None if the sample is too small (see shared.runlog.percentiles)."""
    numbers = values.dropna().to_numpy(float)
    return float(np.percentile(numbers, percent)) if has_percentile(percent, len(numbers)) else None


DONE, FAILED, SKIPPED = "done", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class RunPart:
    """Vehicles that played at the same time: the whole run, or one step of a capacity search."""

    folder: str  # Relative to the folder of the run.
    vehicles: int
    warm_up: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run: its row in the table of runs, its parts, and the steps of a capacity search."""

    row: dict[str, Any]
    parts: tuple[RunPart, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()

    @property
    def state(self) -> str:
        """Done, failed or skipped."""
        return str(self.row["state"])


def measures_every_frame(cell: StudyCell) -> bool:
    """Returns whether all frames of a cell's runs are measured, because its scenario has no warm-up."""
    return not SCENARIOS[cell.scenario].warms_up


class RunError(SkylaneError):
    """A run of a cell failed."""


VALID, INVALID = "VALID", "INVALID"
INVALID_MEANING = (
    "INVALID by MLPerf's rules: the figures are as measured, but rest on too few frames, or on late or lost ones, to be "
    "compared as that scenario's result. Raise `frames`, or lower the named rule under `scenarios` in the study's file"
)
_LATE_SHARE = 0.01  # Accepted share of queries over the limit, in the server scenario.
_RISK = 0.01  # Accepted probability that a system with a larger share is called valid.


@dataclass(frozen=True, slots=True)
class ValidityVerdict:
    """VALID or INVALID with the reason."""

    validity: str
    reason: str


@dataclass(frozen=True, slots=True)
class _RuleCheck:
    passed: bool
    description: str


def judge(run: RunMeasurement, settings: ValidityRules) -> ValidityVerdict:
    """Judges a run by the rules of its scenario; the reason has each rule's number, and MLPerf's if it differs.

    The reason of an INVALID run has the broken rules only, and for a run that is too short how many times as many frames
    would satisfy the rule.
    """
    unanswered = len(run.measured) - len(run.results)
    answers = f"{unanswered} of {len(run.measured)} frames unanswered" if unanswered else "all answered"
    checks = [
        _at_least("ran", run.seconds, "s", settings, "min_duration_s"),
        *_count_checks(run, settings),
        _RuleCheck(unanswered == 0, answers),
    ]
    if isinstance(settings, ServerRules):
        name, late_ms = tail_latency(run)
        latency = "not measured" if late_ms is None else f"{late_ms:.1f} ms"
        passed = late_ms is not None and late_ms <= settings.limit_ms
        checks.append(_RuleCheck(passed, f"{name} {latency}, limit {settings.limit_ms:g} ms"))
        checks += _late_checks(run, settings)
    failed = [check.description for check in checks if not check.passed]
    if failed:
        return ValidityVerdict(INVALID, "; ".join(failed))
    return ValidityVerdict(VALID, "; ".join(check.description for check in checks))


def _count_checks(run: RunMeasurement, settings: ValidityRules) -> list[_RuleCheck]:
    if isinstance(settings, MultiStreamRules):
        queries = int(run.queries_ms(settings.samples_per_query).count())
        return [
            _at_least("answered", queries, "queries", settings, "min_queries"),
            *_deviation(settings, "samples_per_query", "samples per query"),
        ]
    if isinstance(settings, SingleStreamRules | ServerRules):
        return [_at_least("answered", len(run.results), "queries", settings, "min_queries")]
    if isinstance(settings, OfflineRules):
        return [_at_least("answered", len(run.results), "samples", settings, "min_samples")]
    return []


def _late_checks(run: RunMeasurement, settings: ServerRules) -> list[_RuleCheck]:
    """Checks that the late queries are few enough to show that 99 % are in time, unless the study allows fewer queries."""
    if settings.min_queries < ServerRules.model_fields["min_queries"].default:
        return []
    count, late = len(run.results), int((run.results["total_ms"] > settings.limit_ms).sum())
    passed = float(binom.cdf(late, count, _LATE_SHARE)) <= _RISK
    description = f"{late} of {count} over the limit"
    return [_RuleCheck(passed, description if passed else f"{description}: too many to show that 99 % are in time")]


def _at_least(verb: str, value: float, unit: str, settings: ValidityRules, key: str) -> _RuleCheck:
    minimum = getattr(settings, key)
    mlperf = type(settings).model_fields[key].default
    suffix = " s" if unit == "s" else ""
    changed = "" if minimum == mlperf else f" instead of {mlperf:g}{suffix}"
    shown = f"{value:.1f}" if isinstance(value, float) else str(value)
    rule = f"{key.removesuffix('_s')} {minimum:g}{suffix}{changed}"
    remedy = f": {math.ceil(minimum / value)} times as many frames would satisfy it" if 0 < value < minimum else ""
    return _RuleCheck(value >= minimum, f"{verb} {shown} {unit} with {rule}{remedy}")


def _deviation(settings: ValidityRules, key: str, what: str) -> list[_RuleCheck]:
    """Returns a note if a setting differs from MLPerf's."""
    value, mlperf = getattr(settings, key), type(settings).model_fields[key].default
    return [] if value == mlperf else [_RuleCheck(passed=True, description=f"{value} {what} instead of {mlperf}")]
