"""Chooses thresholds: the fewest reference inferences that cost no more accuracy than allowed, also on other drives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.reuse.replay import Replay, simulate
from modelling.reuse.scoring import Counts, Scorer
from shared.reuse.gate import GateSettings, distance
from shared.reuse.tuning import CascadeThresholds

BOUND = 0.95  # Confidence level of the one-sided bound of the loss.

_RESAMPLES = 500  # Number of resamples of the bootstrap.
_SEED = 1
_FEWEST_DRIVES = 5  # The bootstrap resamples parts of drives if there are fewer.
_PARTS = 10  # Parts of each drive in that case.
_LAGS = (1, 2, 5, 10, 25, 50)  # Frames between two images whose distance may be a threshold.
_QUANTILES = 24  # Thresholds to try, from the distances or scores of the drives.
_LOW_SCORES = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.45)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Shares of the frames and accuracy (in points) of a vehicle with some thresholds."""

    gate: GateSettings | None
    cascade: CascadeThresholds | None
    sent: float  # Shares of the frames.
    reused: float
    answered_locally: float
    reference_accuracy: float
    accuracy: float
    by_unit: Counts  # Counts of the presented answers, by drive or part of a drive.

    @property
    def loss(self) -> float:
        """The points of accuracy lost; negative if the local model is better where it answers."""
        return self.reference_accuracy - self.accuracy


class Tuner:
    """Compares thresholds on the frames of a replay. An answer of the reference model arrives `delay_ms` after its frame."""

    def __init__(self, replayed: Replay, delay_ms: float = 0.0) -> None:
        self._replay = replayed
        self._delay_ms = delay_ms
        self._scorer: Scorer = replayed.scorer
        self._counts: dict[tuple[int, int, bool], Counts] = {}
        self._unit_starts = _unit_starts(replayed)
        frames = np.arange(len(replayed.frames))
        self._of_reference = self._by_unit(self._rows(frames, np.zeros(len(frames), bool)))
        self.reference_accuracy = float(self._scorer.accuracy(self._of_reference.sum(axis=0)))
        units = len(self._of_reference)
        drawn = np.random.default_rng(_SEED).integers(0, units, (_RESAMPLES, units))
        self._resamples = np.stack([np.bincount(row, minlength=units) for row in drawn])  # Weights of the units.
        self._resampled_reference = self._scorer.accuracy(self._resamples @ self._of_reference)

    def outcomes(self, gate: GateSettings | None, cascade: CascadeThresholds | None) -> Outcomes:
        """Simulates a vehicle with some thresholds."""
        return next(self.candidates([gate], [cascade]))

    def candidates(
        self, gates: Sequence[GateSettings | None], cascades: Sequence[CascadeThresholds | None]
    ) -> Iterator[Outcomes]:
        """Simulates vehicles with all pairs of a gate and a cascade; cascades that are sure of the same frames once."""
        frames = self._replay.frames
        certain = [
            np.array([cascade is not None and frame.is_sure(cascade) for frame in frames]) for cascade in cascades
        ]
        for gate in gates:
            simulated: dict[bytes, npt.NDArray[np.intp]] = {}
            for cascade, sure in zip(cascades, certain, strict=True):
                if (key := sure.tobytes()) not in simulated:
                    presented = simulate(frames, gate, cascade, self._delay_ms)
                    simulated[key] = np.array([each.answered for each in presented], np.intp)
                answered = simulated[key]
                own = answered == np.arange(len(frames))
                by_unit = self._by_unit(self._rows(answered, sure[answered]))
                yield Outcomes(
                    gate,
                    cascade,
                    sent=float(np.mean(own & ~sure)),
                    reused=float(np.mean(~own)),
                    answered_locally=float(np.mean(own & sure)),
                    reference_accuracy=self.reference_accuracy,
                    accuracy=float(self._scorer.accuracy(by_unit.sum(axis=0))),
                    by_unit=by_unit,
                )

    def gate_thresholds(self, method: str) -> list[float]:
        """Returns thresholds to try: 0, and quantiles of the distances of frames of the same drive."""
        frames = self._replay.frames
        found = [
            distance(method, frame.small, frames[index - lag].small)
            for lag in _LAGS
            for index, frame in enumerate(frames)
            if index >= lag and frames[index - lag].drive == frame.drive
        ]
        if not found:
            return [0.0]
        return sorted({0.0} | {float(f"{value:.3g}") for value in np.quantile(found, np.linspace(0, 1, _QUANTILES))})

    def cascades(self) -> list[CascadeThresholds]:
        """Returns thresholds of a cascade to try; none without a local model."""
        confidences = [frame.confidence for frame in self._replay.frames if frame.confidence is not None]
        if not confidences:
            return []
        if confidences[0].two_sided:
            return [CascadeThresholds(low, 1 - high) for low, high in product(_LOW_SCORES, _LOW_SCORES)]
        shares = np.quantile([each.scores.min() for each in confidences], np.linspace(0, 1, _QUANTILES))
        return [
            CascadeThresholds(0.0, confidence)
            for confidence in sorted({1.0} | {round(float(share), 3) for share in shares})
            if confidence
        ]

    def loss_bound(self, outcomes: Outcomes) -> float:
        """Returns the upper confidence bound of the loss on other drives; NaN if undefined.

        The drives, or tenths of them if there are few, are resampled with replacement (bootstrap). It is the larger one of two
        bounds: that of the loss over all frames, and that of their mean loss, where one that gains accuracy counts as none lost. A
        local model that is better than the reference on one camera does not make up for errors on another.
        """
        in_total = self._resampled_reference - self._scorer.accuracy(self._resamples @ outcomes.by_unit)
        of_units = self._scorer.accuracy(self._of_reference) - self._scorer.accuracy(outcomes.by_unit)
        uncompensated = self._resamples @ np.fmax(0.0, of_units) / len(of_units)  # Undefined: nothing is lost.
        defined = in_total[~np.isnan(in_total)]
        if not len(defined):
            return float("nan")
        return float(max(np.quantile(defined, BOUND), np.quantile(uncompensated, BOUND)))

    def _by_unit(self, rows: Counts) -> Counts:
        """Returns the sums of the frames' rows by unit."""
        return np.asarray(np.add.reduceat(rows, self._unit_starts, axis=0))

    def _rows(self, answered: npt.NDArray[np.intp], is_local: npt.NDArray[np.bool_]) -> Counts:
        """Returns the counts of each frame, with one model's answer to the frame `answered`; each pair is counted once."""
        replayed = self._replay
        rows = []
        for key in zip(range(len(answered)), answered.tolist(), is_local.tolist(), strict=True):
            index, other, local = key
            if key not in self._counts:
                answers: Sequence[Any] = replayed.local_answers if local else replayed.reference_answers
                self._counts[key] = self._scorer.count(replayed.truths[index], answers[other])
            rows.append(self._counts[key])
        return np.stack(rows)


def _unit_starts(replayed: Replay) -> npt.NDArray[np.intp]:
    """Returns the first frame of each unit that the bootstrap resamples: drives, or parts of drives if there are few."""
    drives = [frame.drive for frame in replayed.frames]
    parts = 1 if len(replayed.drives) >= _FEWEST_DRIVES else _PARTS
    starts: set[int] = set()
    for drive in replayed.drives:
        first, count = drives.index(drive), drives.count(drive)
        starts |= {first + part * count // parts for part in range(parts)}
    return np.array(sorted(starts), np.intp)


def best(tuner: Tuner, candidates: Sequence[Outcomes], allowed: float) -> tuple[Outcomes, float] | None:
    """Returns the candidate with the fewest reference inferences whose loss and its bound are allowed, and the bound.

    Args:
        tuner: Computes the bound.
        candidates: The thresholds to choose from.
        allowed: The largest loss, in points.
    """
    for outcomes in sorted(candidates, key=lambda one: (one.sent, one.loss)):
        if outcomes.loss <= allowed:
            bound = tuner.loss_bound(outcomes)
            if bound <= allowed:
                return outcomes, bound
    return None


def pareto_front(candidates: Sequence[Outcomes]) -> list[Outcomes]:
    """Returns the candidates that lose less than all with fewer reference inferences, the fewest first."""
    front: list[Outcomes] = []
    for each in sorted(candidates, key=lambda one: (one.sent, one.loss)):
        if not front or each.loss < front[-1].loss:
            front.append(each)
    return front
