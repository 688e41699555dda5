"""Tunes the gate and the cascade of a pair of models, and measures tuned thresholds on other drives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modelling.evaluation.segmentation import EvaluationError
from modelling.reuse.calibration import (
    BINS,
    CalibrationSamples,
    Reliability,
    cross_fitted,
    fit_temperature,
    reliability,
)
from modelling.reuse.replay import Replay
from modelling.reuse.search import Outcomes, Tuner, best
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.reuse.gate import GateSettings
from shared.reuse.tuning import (
    CascadeThresholds,
    MeasuredSection,
    ReliabilityBinSection,
    TunedGateSection,
    TunedLocalSection,
    TunedModelSection,
    Tuning,
)

_DIGITS = 4  # Decimal places in a tuning file.


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Limits of the search for thresholds."""

    loss: float  # Points of accuracy that gate and cascade may lose together.
    gate_loss: float | None = None  # Points that the gate alone may lose; None: as `loss`.
    methods: tuple[str, ...] = ("mse",)  # Keys of `shared.reuse.gate.METHODS`; the first one is tuned with the cascade.
    reuse_frames: int = 10  # Longest reuse; a wrong answer is reused as long as a right one.
    reuse_ms: float = 1000.0


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The chosen thresholds, and what was tried."""

    tuning: Tuning
    chosen: Outcomes
    candidates: Sequence[Outcomes]


def tune(replayed: Replay, reference: ModelCard, local: Model | None, settings: TuneSettings) -> TuneResult:
    """Chooses the thresholds with the fewest reference inferences that lose no more accuracy than allowed.

    The gate alone must keep to the allowed loss too, because a vehicle may use it without a cascade.

    Raises:
        EvaluationError: no thresholds keep to the allowed loss, or the accuracy is undefined.
    """
    temperature = 1.0
    if local is not None:
        temperature = _rounded(fit_temperature(CalibrationSamples.merged(replayed.samples)))
        replayed.set_confidences(local, temperature)
    tuner = Tuner(replayed)
    if np.isnan(tuner.reference_accuracy):
        raise EvaluationError(
            f"the {replayed.scorer.metric} is undefined on these bags, because nothing in them is of the classes of "
            f"{reference.name}: give bags with traffic"
        )
    cascades: list[CascadeThresholds | None] = list(tuner.cascades()) or [None]
    gates = _usable_gates(tuner, settings.methods[0], settings)
    candidates = list(tuner.candidates(gates, cascades))
    found = best(tuner, candidates, settings.loss)
    if found is None:
        raise EvaluationError(
            f"no thresholds lose at most {settings.loss:g} points of {replayed.scorer.metric}: allow more with --loss, or "
            f"give more bags"
        )
    chosen, bound = found
    thresholds = {} if chosen.gate is None else {settings.methods[0]: chosen.gate.threshold}
    for method in settings.methods[1:]:
        others = list(tuner.candidates(_usable_gates(tuner, method, settings), [chosen.cascade]))
        other = best(tuner, others, settings.loss)
        if other is not None and other[0].gate is not None:
            thresholds[method] = other[0].gate.threshold
    tuning = Tuning(
        reference=TunedModelSection(name=reference.name, sha256=reference.sha256),
        gate=TunedGateSection(reuse_frames=settings.reuse_frames, reuse_ms=settings.reuse_ms, **thresholds),
        local=None if local is None else _local_section(local.card, temperature, chosen),
        measured=_measured(replayed, chosen, bound, settings),
    )
    return TuneResult(tuning, chosen, candidates)


def _usable_gates(tuner: Tuner, method: str, settings: TuneSettings) -> list[GateSettings | None]:
    """Returns the gates that keep to the loss allowed to the gate alone."""
    allowed = settings.loss if settings.gate_loss is None else settings.gate_loss
    gates = [
        GateSettings(method, threshold, settings.reuse_frames, settings.reuse_ms)
        for threshold in tuner.gate_thresholds(method)
    ]
    return [each.gate for each in tuner.candidates(gates, [None]) if best(tuner, [each], allowed) is not None]


def _local_section(card: ModelCard, temperature: float, chosen: Outcomes) -> TunedLocalSection:
    assert chosen.cascade is not None
    return TunedLocalSection(
        name=card.name,
        sha256=card.sha256,
        temperature=temperature,
        c_low=_rounded(chosen.cascade.c_low),
        c_high=_rounded(chosen.cascade.c_high),
    )


def _measured(replayed: Replay, chosen: Outcomes, bound: float, settings: TuneSettings) -> MeasuredSection:
    calibration: dict[str, Any] = {}
    if replayed.samples:
        fitted = cross_fitted(replayed.samples_by_drive())
        after, before = reliability(fitted), reliability([(samples, 1.0) for samples, _ in fitted])
        calibration = {
            "reliability_unit": replayed.scorer.unit,
            "calibration_error": _rounded(after.expected_error),
            "calibration_error_uncalibrated": _rounded(before.expected_error),
            "reliability": _bins(after),
            "reliability_uncalibrated": _bins(before),
        }
    return MeasuredSection(
        drives=tuple(replayed.drives),
        frames=len(replayed.frames),
        metric=replayed.scorer.metric,
        reference_accuracy=_rounded(chosen.reference_accuracy),
        accuracy=_rounded(chosen.accuracy),
        loss=_rounded(chosen.loss),
        loss_bound=_rounded(bound),
        allowed_loss=settings.loss,
        method=None if chosen.gate is None else chosen.gate.method,
        sent=_rounded(chosen.sent),
        reused=_rounded(chosen.reused),
        answered_locally=_rounded(chosen.answered_locally),
        **calibration,
    )


def _bins(diagram: Reliability) -> tuple[ReliabilityBinSection, ...]:
    edges = np.linspace(0, 1, BINS + 1)
    return tuple(
        ReliabilityBinSection(
            low=_rounded(edges[index]),
            high=_rounded(edges[index + 1]),
            count=int(count),
            confidence=_rounded(diagram.confidences[index]) if count else None,
            accuracy=_rounded(diagram.accuracies[index]) if count else None,
        )
        for index, count in enumerate(diagram.counts)
    )


def _rounded(value: float) -> float:
    return round(float(value), _DIGITS)
