"""Judges tuned thresholds on drives that they were not tuned on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any, NamedTuple

from modelling.evaluation.bag_images import ComparedWith
from modelling.reuse.replay import Replay, simulate
from modelling.reuse.search import Outcomes, Tuner
from shared.errors import MissingExtraError
from shared.inference.model import Model
from shared.reuse.gate import GateSettings
from shared.reuse.tuning import CascadeThresholds, Tuning, cascade_thresholds
from shared.runlog.mean_interval import mean_interval
from shared.terminal_table import Table

_SHARES = ("sent", "reused", "answered_locally")
_SHARE_OF = {**dict.fromkeys(_SHARES, 1.0), "reference_accuracy": 100.0, "agreement": 100.0}  # Values of 0 to this.
_NS_PER_MS = 1e6


class DriveMean(NamedTuple):
    """The mean of a value over the drives, with Student's interval; its ends may be NaN."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """Cost and benefit of tuned thresholds, by use ("gate", "cascade", "both") and by drive."""

    metric: str
    compared_with: ComparedWith
    note: str  # See Replay.
    frames: int
    delay_ms: float
    gate_ms: float | None  # Median time of the gate for one frame; None without a gate.
    by_use: Mapping[str, Mapping[str, Mapping[str, float]]]  # Use, drive, column.

    @property
    def columns(self) -> tuple[str, ...]:
        """The measured values; agreement is that with gate and cascade, as the reference model agrees with itself."""
        points = "reference_accuracy" if self.compared_with == "labels" else "agreement"
        return (*_SHARES, points, "loss")

    def mean(self, use: str, column: str) -> DriveMean:
        """Returns the mean of a column over the drives.

        Raises:
            MissingExtraError: SciPy is not installed.
        """
        values = [each[column] for each in self.by_use[use].values()]
        try:
            return DriveMean(fmean(values), *mean_interval(values, share_of=_SHARE_OF.get(column)))
        except ModuleNotFoundError as error:
            raise MissingExtraError("the interval over drives", "scipy", "report") from error

    def table(self, title: str) -> Table:
        """Returns the values of each use and drive, and their mean."""
        parts = [f"mean with 95 % interval over the drives; loss: points of {self.metric}"]
        parts += [f"answers after {self.delay_ms:g} ms"]
        parts += [] if self.gate_ms is None else [f"the gate took {self.gate_ms:.2f} ms a frame"]
        table = Table(title=title, caption=" · ".join([*parts, *filter(None, [self.note])]))
        for column in ("", "drive", "sent", "reused", "local", self.metric, "loss"):
            table.add_column(column, justify="right")
        for use, drives in self.by_use.items():
            for drive, values in drives.items():
                table.add_row(use, drive, *(_shown(column, values[column]) for column in self.columns))
            means = (self.mean(use, column) for column in self.columns)
            table.add_row(use, "mean", *(_shown_mean(*pair) for pair in zip(self.columns, means, strict=True)))
            table.add_section()
        return table

    def to_json(self) -> dict[str, Any]:
        """Returns the results as plain types; an undefined number is None."""
        uses = {}
        for use, drives in self.by_use.items():
            uses[use] = {
                "drives": {
                    drive: _rounded({column: values[column] for column in self.columns})
                    for drive, values in drives.items()
                },
                **{column: _rounded(self.mean(use, column)._asdict()) for column in self.columns},
            }
        return {
            "metric": self.metric,
            "compared_with": self.compared_with,
            "note": self.note,
            "frames": self.frames,
            "delay_ms": self.delay_ms,
            "gate_ms": self.gate_ms,
            **uses,
        }


def judge(
    replayed: Replay, tuning: Tuning, local: Model | None, method: str | None, delay_ms: float = 0.0
) -> Judgement:
    """Simulates vehicles that use the gate, the cascade, or both, on each drive.

    Args:
        replayed: The drives.
        tuning: The thresholds.
        local: The local model of the tuning; None if it has none.
        method: How the gate compares frames; None for no gate.
        delay_ms: Time from a frame to the arrival of the reference model's answer.

    Raises:
        TuningError: the method was not tuned.
    """
    gate = None if method is None else tuning.gate_settings(method)
    cascade = None
    if local is not None and tuning.local is not None:
        replayed.set_confidences(local, tuning.local.temperature)
        cascade = cascade_thresholds(tuning.local)
    uses: dict[str, tuple[GateSettings | None, CascadeThresholds | None]] = {}
    if gate is not None:
        uses["gate"] = (gate, None)
    if cascade is not None:
        uses["cascade"] = (None, cascade)
    if gate is not None and cascade is not None:
        uses["both"] = (gate, cascade)
    drives = {name: Tuner(replayed.only(name), delay_ms) for name in replayed.drives}
    return Judgement(
        replayed.metric,
        replayed.compared_with,
        replayed.note,
        len(replayed.frames),
        delay_ms,
        None if gate is None else _gate_ms(replayed, gate),
        {use: {name: _values(tuner.outcomes(*pair)) for name, tuner in drives.items()} for use, pair in uses.items()},
    )


def _gate_ms(replayed: Replay, gate: GateSettings) -> float:
    """Returns the time of reducing an image (median), and of comparing it (mean)."""
    start_ns = perf_counter_ns()
    simulate(replayed.frames, gate)
    return round(median(replayed.reduced_ms) + (perf_counter_ns() - start_ns) / _NS_PER_MS / len(replayed.frames), 4)


def _values(outcomes: Outcomes) -> dict[str, float]:
    points = {"reference_accuracy": outcomes.reference_accuracy, "agreement": outcomes.accuracy, "loss": outcomes.loss}
    return {column: float(getattr(outcomes, column)) for column in _SHARES} | points


def _rounded(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else round(value, 5) for name, value in values.items()}


def _shown(column: str, value: float) -> str:
    return f"{value:.1%}" if column in _SHARES else f"{value:.2f}"


def _shown_mean(column: str, mean: DriveMean) -> str:
    if math.isnan(mean.low):
        return _shown(column, mean.mean)
    return f"{_shown(column, mean.mean)} ({_shown(column, mean.low)} to {_shown(column, mean.high)})"
