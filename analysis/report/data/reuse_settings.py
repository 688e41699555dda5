"""The gate, the cascade and the local model of a run, as its manifest describes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.logs.run_log import RunLog

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
    return ReuseSettings(
        method=_text(gate.get("method")),
        threshold=_number(gate.get("threshold")),
        reuse_frames=_number(gate.get("reuse_frames")),
        reuse_ms=_number(gate.get("reuse_ms")),
        resets=_number(gate.get("resets")),
        local_model=_text(local.get("name")),
        c_low=_number(local.get("c_low")),
        c_high=_number(local.get("c_high")),
        temperature=_number(local.get("temperature")),
        switched_off=_text(local.get("switched_off")),
        failures={reason: count for reason, count in failures.items() if count},
        tuning=_text(section.get("tuning")),
        unit=_text(measured.get("reliability_unit")) or "answers",
        reliability=_bins(measured.get("reliability")),
        uncalibrated=_bins(measured.get("reliability_uncalibrated")),
    )


def _bins(values: Any) -> tuple[ReliabilityBin, ...]:
    """Returns the bins that have answers."""
    names = ("low", "high", "count", "confidence", "accuracy")
    maps = [_map(value) for value in values] if isinstance(values, list | tuple) else []
    complete = [each for each in maps if all(_is_number(each.get(name)) for name in names) and each["count"] > 0]
    return tuple(
        ReliabilityBin(
            float(each["low"]),
            float(each["high"]),
            int(each["count"]),
            float(each["confidence"]),
            float(each["accuracy"]),
        )
        for each in complete
    )


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)


def _number(value: Any) -> float:
    return float(value) if _is_number(value) else np.nan
