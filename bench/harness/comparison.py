"""Compares named candidates in alternating rounds of one run, so that drift of the machine affects all of them alike."""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from analysis.statistics.samples import spread
from cloud.models.engine_benchmark import turns
from ops.processes.environment import OnStep
from ops.processes.playback import TOTAL
from shared.errors import SkylaneError
from shared.stages import Stage

OVERHEAD = "overhead"  # Total time of a frame without its inference.

Samples = Mapping[str, Sequence[float]]  # Samples of one candidate in one round, by measure.
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measure of a candidate divided by that of another."""

    value: float  # Over the samples of all rounds.
    by_round: tuple[float, ...]

    @property
    def median_of_rounds(self) -> float:
        """The median of the ratios by round."""
        return statistics.median(self.by_round)

    def record(self) -> dict[str, Any]:
        """The ratio as JSON output contains it."""
        return {"ratio": self.value, "by_round": list(self.by_round)}


class Comparison:
    """Samples by candidate, measure and round."""

    def __init__(self, names: Collection[str]) -> None:
        self.failed: dict[str, str] = {}  # Reasons by candidate.
        self._rounds: dict[str, dict[str, list[Sequence[float]]]] = {name: {} for name in names}

    @property
    def names(self) -> list[str]:
        """The candidates that have not failed."""
        return [name for name in self._rounds if name not in self.failed]

    @property
    def measured(self) -> list[str]:
        """The candidates that completed a round."""
        return [name for name, measures in self._rounds.items() if measures]

    def add(self, name: str, samples: Samples) -> None:
        """Adds the samples of one round."""
        for measure, values in samples.items():
            self._rounds[name].setdefault(measure, []).append(values)

    def samples(self, name: str, measure: str) -> list[float]:
        """Returns the samples of all rounds."""
        return [value for values in self._rounds[name][measure] for value in values]

    def by_round(
        self, name: str, measure: str, statistic: Callable[[Sequence[float]], float] = statistics.median
    ) -> tuple[float, ...]:
        """Returns a statistic of each round."""
        return tuple(statistic(values) for values in self._rounds[name][measure])

    def spread(self, name: str, measure: str) -> dict[str, Any]:
        """Returns percentiles of the samples of all rounds, see `analysis.statistics.samples.spread`."""
        return spread(self.samples(name, measure))

    def median(self, name: str, measure: str) -> float:
        """Returns the median of the samples of all rounds."""
        return statistics.median(self.samples(name, measure))

    def medians(self, name: str) -> dict[str, float]:
        """Returns the median of every measure."""
        return {measure: self.median(name, measure) for measure in self._rounds[name]}

    def ratio(
        self, name: str, reference: str, measure: str, statistic: Callable[[Sequence[float]], float] = statistics.median
    ) -> Ratio:
        """Divides a statistic of a candidate's measure by that of the reference, overall and round by round."""
        # A candidate that failed has fewer rounds.
        rounds = zip(
            self.by_round(name, measure, statistic), self.by_round(reference, measure, statistic), strict=False
        )
        overall = statistic(self.samples(name, measure)) / statistic(self.samples(reference, measure))
        return Ratio(overall, tuple(own / other for own, other in rounds))


def compare(
    candidates: Mapping[str, Callable[[int], Samples]],
    rounds: int,
    on_step: OnStep,
    *,
    step: str = "",
    may_fail: Collection[str] = (),
) -> Comparison:
    """Runs each candidate once in every round; a candidate receives the number of the round, from 0.

    `step` precedes the description of each turn. A candidate of `may_fail` whose turn raises a SkylaneError is left out
    of the following rounds and listed in `Comparison.failed`.

    Raises:
        SkylaneError: the turn of another candidate failed.
    """
    comparison = Comparison(candidates)
    for number, name in alternating(list(candidates), rounds):
        if name in comparison.failed:
            continue
        on_step(f"{step}round {number + 1} of {rounds}: {name}")
        try:
            comparison.add(name, candidates[name](number))
        except SkylaneError as error:
            if name not in may_fail:
                raise
            comparison.failed[name] = f"from round {number + 1} on: {error}"
    return comparison


def alternating(candidates: Sequence[K], rounds: int) -> Iterator[tuple[int, K]]:
    """Yields the number of the round and a candidate; in two rounds, each candidate runs before and after its neighbour."""
    for number in range(rounds):
        for candidate in turns(candidates, number):
            yield number, candidate


def frame_samples(frames: Sequence[Mapping[str, float]]) -> Samples:
    """Converts one round's frames, each with its durations by stage in milliseconds, to samples; adds the overhead."""
    samples: dict[str, list[float]] = {OVERHEAD: [frame[TOTAL] - frame[Stage.INFERRED] for frame in frames]}
    for frame in frames:
        for name, value in frame.items():
            samples.setdefault(name, []).append(value)
    return samples


def overhead_record(comparison: Comparison, name: str) -> dict[str, Any]:
    """Summarises samples of `frame_samples` for JSON output: spread of the overhead, medians by round and by stage."""
    return {
        "n": len(comparison.samples(name, OVERHEAD)),
        "overhead_ms": comparison.spread(name, OVERHEAD),
        "by_round_ms": list(comparison.by_round(name, OVERHEAD)),
        "parts": {measure: value for measure, value in comparison.medians(name).items() if measure != OVERHEAD},
    }


def plan_record(plan: Any) -> dict[str, Any]:
    """Converts the dataclass of a benchmark's settings for JSON output; paths become strings."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(plan).items()}
