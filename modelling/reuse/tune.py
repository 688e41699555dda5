"""Tunes the gate and the cascade of a pair of models, and makes the tables of `skylane model tune-gate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modelling.evaluation.bag_images import EvaluationError
from modelling.reuse.calibration import (
    BINS,
    CalibrationSamples,
    Reliability,
    cross_fitted,
    fit_temperature,
    reliability,
)
from modelling.reuse.replay import Replay
from modelling.reuse.search import Outcomes, Tuner, best, pareto_front
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
from shared.terminal_table import Table

_DIGITS = 4  # Decimal places in a tuning file.


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """Limits of the search for thresholds."""

    loss: float  # Points of accuracy that gate and cascade may lose together.
    gate_loss: float | None = None  # Points that the gate alone may lose; None: as `loss`.
    methods: tuple[str, ...] = ("mse",)  # Keys of `shared.reuse.gate.METHODS`; the first one is tuned with the cascade.
    reuse_frames: int = 10  # Longest reuse; a wrong answer is reused as long as a right one.
    reuse_ms: float = 1000.0
    delay_ms: float = 0.0  # Time from a frame to the arrival of the reference model's answer.


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The chosen thresholds, and what was tried."""

    tuning: Tuning
    chosen: Outcomes
    candidates: Sequence[Outcomes]
    note: str  # See Replay.


def tune(replayed: Replay, reference: ModelCard, local: Model | None, settings: TuneSettings) -> TuneResult:
    """Chooses the thresholds with the fewest reference inferences that lose no more accuracy than allowed.

    The gate alone must keep to the allowed loss too, because a vehicle may use it without a cascade.

    Raises:
        EvaluationError: no thresholds keep to the allowed loss, or the accuracy is undefined.
    """
    temperature = 1.0
    if local is not None:
        samples = CalibrationSamples.merged(replayed.samples)
        if not len(samples.classes):
            raise EvaluationError(
                f"nothing here calibrates the confidence of {local.card.name}: it finds none of its classes, or the labels are "
                "of other classes; compare with the reference model's results by --reference results"
            )
        temperature = _rounded(fit_temperature(samples))
        replayed.set_confidences(local, temperature)
    tuner = Tuner(replayed, settings.delay_ms)
    if np.isnan(tuner.reference_accuracy):
        raise EvaluationError(
            f"the {replayed.metric} is undefined on these recordings, because nothing in them is of the classes of "
            f"{reference.name}: give some with traffic"
        )
    cascades: list[CascadeThresholds | None] = list(tuner.cascades()) or [None]
    gates = _usable_gates(tuner, settings.methods[0], settings)
    candidates = list(tuner.candidates(gates, cascades))
    found = best(tuner, candidates, settings.loss)
    if found is None:
        raise EvaluationError(
            f"no thresholds lose at most {settings.loss:g} points of {replayed.metric}: allow more with --loss, or give more "
            "recordings"
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
    return TuneResult(tuning, chosen, candidates, replayed.note)


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
    is_accuracy = replayed.compared_with == "labels"
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
        compared_with=replayed.compared_with,
        delay_ms=settings.delay_ms,
        metric=replayed.metric,
        reference_accuracy=_rounded(chosen.reference_accuracy) if is_accuracy else None,
        accuracy=_rounded(chosen.accuracy) if is_accuracy else None,
        agreement=None if is_accuracy else _rounded(chosen.accuracy),
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


_ROWS = 12  # Thresholds shown beside the chosen ones.


def thresholds_table(result: TuneResult) -> Table:
    """Returns the best thresholds that were tried, from few reference inferences to small losses; * marks the chosen."""
    measured = result.tuning.measured
    assert measured is not None
    table = Table(
        title=f"{result.tuning.reference.name} on {measured.frames} frames of {len(measured.drives)} drives",
        caption=f"loss: points of {measured.metric}; {result.chosen.reference_accuracy:.2f} if every frame is sent · with 95 % "
        f"confidence the chosen thresholds lose at most {measured.loss_bound:.2f} · answers after {measured.delay_ms:g} ms"
        f"{result.note and ' · '}{result.note}",
    )
    for column in ("", f"{measured.method or 'no gate'} ≤", "c_low", "c_high", "sent", "reused", "local", "loss"):
        table.add_column(column, justify="right")
    for tried in _shown(result):
        table.add_row(
            "*" if tried is result.chosen else "",
            "" if tried.gate is None else f"{tried.gate.threshold:g}",
            *(("", "") if tried.cascade is None else (f"{tried.cascade.c_low:g}", f"{tried.cascade.c_high:g}")),
            *(f"{share:.1%}" for share in (tried.sent, tried.reused, tried.answered_locally)),
            f"{tried.loss:.2f}",
        )
    return table


def reliability_table(tuning: Tuning) -> Table:
    """Returns the numbers of the reliability diagram, before and after temperature scaling."""
    measured, local = tuning.measured, tuning.local
    assert measured is not None
    assert local is not None
    before, after = measured.calibration_error_uncalibrated or 0.0, measured.calibration_error or 0.0
    points = "accuracy" if measured.compared_with == "labels" else "agreement"
    table = Table(
        title=f"{local.name}: confidence and {points} of {measured.reliability_unit} at temperature {local.temperature:g}",
        caption=f"expected calibration error {after:.4f}, without temperature {before:.4f}",
    )
    for column in ("confidence", "mean", points, measured.reliability_unit or ""):
        table.add_column(column, justify="right")
    for each in measured.reliability:
        if each.count:
            table.add_row(
                f"{each.low:.1f} to {each.high:.1f}", f"{each.confidence:.3f}", f"{each.accuracy:.3f}", str(each.count)
            )
    return table


def header(result: TuneResult) -> str:
    """Returns the comment at the start of a tuning file."""
    measured = result.tuning.measured
    assert measured is not None
    return (
        f"Thresholds for {result.tuning.reference.name}, written by `skylane model tune-gate`.\n"
        f"Gate: mse in squared grey levels, pixels in percent. Losses: points of {measured.metric}.\n{result.note}"
    )


def _shown(result: TuneResult) -> Sequence[Outcomes]:
    """Returns the chosen thresholds and some of those that are not worse than others in every respect."""
    front = pareto_front(result.candidates)
    if result.chosen not in front:
        front = sorted([*front, result.chosen], key=lambda one: one.sent)
    at = next(index for index, each in enumerate(front) if each is result.chosen)
    first = max(0, min(at - _ROWS // 2, len(front) - _ROWS))
    return front[first : first + _ROWS]
