"""The frames of a run that were not sent, and the gate and the local model of its manifest that kept them from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.run_log import NOT_SENT, ORIGINS, RunLog, frames_not_sent
from analysis.report.data.answered_frames import column_values, timed_results
from analysis.statistics.bootstrap import Floats
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import percentiles

_SENT, _NO_RESULT = "sent", "neither sent nor answered"


@dataclass(frozen=True, slots=True)
class OriginSummary:
    """The frames whose results have one origin; latencies are NaN if the sample is too small."""

    origin: str  # worker, reused or local.
    outcome: str
    frames: int
    share: float  # Share of the frames read.
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Savings:
    """What was saved by not sending frames."""

    inferences: int  # Inferences that workers did not run.
    bytes_each: float  # Mean size of an answered frame and its result; NaN if no frame was answered by a worker.

    @property
    def bytes_total(self) -> float:
        """The bytes that these frames and their results would have had, estimated from those that were sent."""
        return self.inferences * self.bytes_each


def origin_summaries(frames: pd.DataFrame) -> list[OriginSummary]:
    """Summarises the total latency by the origin of the result; origins without frames are left out."""
    results = timed_results(frames)
    found = []
    for outcome, origin in ORIGINS.items():
        count = int((frames["outcome"] == outcome).sum())
        totals = column_values(results[results["outcome"] == outcome], "total_ms")
        if count:
            p50, p95, p99 = percentiles(totals, (50, 95, 99))
            found.append(OriginSummary(origin, outcome.value, count, count / len(frames), p50, p95, p99))
    return found


def savings(frames: pd.DataFrame) -> Savings:
    """Returns what was saved by the frames that were not sent."""
    answered = frames[frames["outcome"] == Outcome.ANSWERED]
    bytes_each = (
        float((answered["bytes_up"] + answered["bytes_down"]).astype(float).mean()) if len(answered) else np.nan
    )
    return Savings(len(frames_not_sent(frames)), bytes_each)


def fates(frames: pd.DataFrame) -> pd.Series:
    """Returns for each frame whether its result was reused or local, or whether it was sent."""
    sent = pd.Series(np.where(column_values(frames, "attempts") > 0, _SENT, _NO_RESULT), frames.index)
    return sent.mask(frames["outcome"].isin(NOT_SENT), frames["outcome"].str.replace("_", " "))


def reuse_ages(frames: pd.DataFrame) -> tuple[Floats, Floats]:
    """Returns the ages of the reused results, in frames of the camera that the gate compared, and in milliseconds.

    Both are counted from the frame whose result was reused, the time by the clock of the source, as the gate limits them.
    Reused frames are left out if that frame has no row.
    """
    is_gated = frames["t_gated_ns"].notna() & frames["source_ns"].notna()
    gated = frames[is_gated].sort_values("sequence").drop_duplicates("sequence")
    places = gated.groupby("camera").cumcount().set_axis(gated["sequence"])
    source_ns = gated["source_ns"].set_axis(gated["sequence"])
    reused = gated[(gated["outcome"] == Outcome.REUSED) & gated["reused_sequence"].isin(gated["sequence"])]
    sequences, sources = reused["sequence"].to_numpy(np.int64), reused["reused_sequence"].to_numpy(np.int64)
    age_frames = places[sequences].to_numpy(np.float64) - places[sources].to_numpy(np.float64)
    age_ns = source_ns[sequences].to_numpy(np.int64) - source_ns[sources].to_numpy(np.int64)
    return age_frames, age_ns / 1e6


_DISTANCES = {"mse": "mean squared difference, grey levels²", "pixels": "changed pixels, %"}


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The answers of the local model whose confidence lies in one range."""

    low: float
    high: float
    count: int
    confidence: float  # Mean confidence of the answers.
    accuracy: float  # Share of right answers.


@dataclass(frozen=True, slots=True)
class ReuseSettings:
    """The settings by which frames were not sent; NaN or empty if the manifest lacks a value."""

    method: str = ""  # The gate's method; empty without a gate.
    threshold: float = np.nan
    reuse_frames: float = np.nan
    reuse_ms: float = np.nan
    resets: float = np.nan  # Changes of the size or encoding of a camera's frames.
    local_model: str = ""
    c_low: float = np.nan  # 0 if a low score is never certain.
    c_high: float = np.nan
    temperature: float = np.nan
    switched_off: str = ""  # The reason why the local model was last paused; empty if it never was.
    failures: Mapping[str, int] = field(default_factory=dict)  # Failures of the local model, by reason.
    tuning: str = ""  # The tuning file.
    is_agreement: bool = False  # Compared with the results of the reference model, not with a truth.
    unit: str = "answers"  # The unit of the counts of a reliability bin.
    reliability: tuple[ReliabilityBin, ...] = ()
    uncalibrated: tuple[ReliabilityBin, ...] = ()  # The same without calibration.

    @property
    def is_used(self) -> bool:
        """True if the run had a gate or a local model."""
        return bool(self.method or self.local_model)

    @property
    def distance(self) -> str:
        """The quantity that the gate compares, with its unit."""
        return _DISTANCES.get(self.method, "distance, in the unit of the gate")


def reuse_settings(run: RunLog) -> ReuseSettings:
    """Reads the section `reuse` of a run's manifest; invalid values are read as missing."""
    section = _map(run.manifest.get("reuse"))
    gate, local, measured = (_map(section.get(name)) for name in ("gate", "local", "measured"))
    failures = {
        str(reason): int(_number(count)) for reason, count in _map(local.get("failures")).items() if _is_number(count)
    }
    numbers = {
        name: _number(part.get(name))
        for part, names in (
            (gate, ("threshold", "reuse_frames", "reuse_ms", "resets")),
            (local, ("c_low", "c_high", "temperature")),
        )
        for name in names
    }
    return ReuseSettings(
        method=_text(gate.get("method")),
        local_model=_text(local.get("name")),
        switched_off=_text(local.get("switched_off")),
        failures={reason: count for reason, count in failures.items() if count},
        tuning=_text(section.get("tuning")),
        is_agreement=measured.get("compared_with") == "results",
        unit=_text(measured.get("reliability_unit")) or "answers",
        reliability=_bins(measured.get("reliability")),
        uncalibrated=_bins(measured.get("reliability_uncalibrated")),
        **numbers,
    )


def _bins(values: Any) -> tuple[ReliabilityBin, ...]:
    """Returns the bins that have answers."""
    names = ("low", "high", "confidence", "accuracy")
    maps = [_map(value) for value in values] if isinstance(values, list | tuple) else []
    complete = [each for each in maps if all(_is_number(each.get(name)) for name in (*names, "count"))]
    return tuple(
        ReliabilityBin(count=int(each["count"]), **{name: float(each[name]) for name in names})
        for each in complete
        if each["count"] > 0
    )


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)


def _number(value: Any) -> float:
    return float(value) if _is_number(value) else np.nan
