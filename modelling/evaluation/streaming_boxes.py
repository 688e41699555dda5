"""Streaming accuracy of detections: each tick's boxes against the true boxes of that same tick."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modelling.evaluation.average_precision import BoxMatcher
from modelling.evaluation.streaming import ScoredTick, ScoredTicks
from shared.messages.results import Detections

Floats = npt.NDArray[np.float64]

_CHUNK = 100  # Replicates that are computed together, which bounds the memory.


@dataclass(frozen=True, slots=True)
class MatchedBoxes:
    """The boxes of a tick by class: the scores of the found ones, whether each matches a true one, and the true ones."""

    scores: tuple[Floats, ...]
    hits: tuple[npt.NDArray[np.bool_], ...]
    truths: tuple[int, ...]

    @property
    def recall(self) -> float:
        """The share of the true boxes that were found; NaN without any."""
        truths = sum(self.truths)
        return sum(int(each.sum()) for each in self.hits) / truths if truths else float("nan")


class StreamingBoxes(ScoredTicks[MatchedBoxes]):
    """Scored ticks of a detector."""

    def add(
        self,
        truth: tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]],
        output: Detections | None,
        *,
        smallest: float,
        origin: str,
        age_ns: int | None = None,
        drive: str = "",
    ) -> ScoredTick[MatchedBoxes]:
        """Scores one tick and returns it.

        Args:
            truth: The true boxes N×4 (x1, y1, x2, y2) and their class ids.
            output: The found boxes, in the same pixels; None if the tick has no output.
            smallest: The root of the area of the smallest true box that counts, in the same pixels.
            origin: Where the output came from; see `edge.presenting.presenter.OutputOrigin`.
            age_ns: How much older than the tick the output's frame is; required with an output.
            drive: The drive or the run to which the tick belongs.
        """
        assert (output is None) == (age_ns is None), "an output has an age; a missing one has none"
        matcher = BoxMatcher(len(self.names), smallest)
        matcher.add(output or _NOTHING, *truth)
        scored = [matcher.scored(class_id) for class_id in range(len(self.names))]
        matched = MatchedBoxes(
            tuple(scores for scores, _ in scored), tuple(hits for _, hits in scored), tuple(matcher.truths)
        )
        tick = ScoredTick(matched, str(origin), age_ns, drive)
        self.ticks.append(tick)
        return tick

    def accuracy(self, *, with_missing: bool = False) -> float:
        """Returns the mean of the average precision over the classes with true boxes; NaN without any.

        `with_missing`: ticks without an output count too, with all of their true boxes missed.
        """
        ticks = self.counted_ticks(with_missing=with_missing)
        return float(_mean_precision(ticks, len(self.names), np.ones((1, len(ticks))))[0])

    def by_class(self) -> dict[str, float]:
        """Returns the average precision of each class with true boxes."""
        ticks = self.counted_ticks()
        weights = np.ones((1, len(ticks)))
        values = {name: _precision(ticks, number, weights)[0] for number, name in enumerate(self.names)}
        return {name: float(value) for name, value in values.items() if np.isfinite(value)}

    def counted_ticks(self, *, with_missing: bool = False) -> list[MatchedBoxes]:
        """Returns what was matched in the ticks that count."""
        return [tick.tallies for tick in self.ticks if with_missing or not tick.is_missing]

    def replicates(self, weights: Floats, *, with_missing: bool = False) -> Floats:
        """Returns the accuracy if each tick that counts occurred as often as a row of `weights` says."""
        ticks = self.counted_ticks(with_missing=with_missing)
        parts = [weights[start : start + _CHUNK] for start in range(0, len(weights), _CHUNK)]
        return np.concatenate([_mean_precision(ticks, len(self.names), part) for part in parts])


_NOTHING = Detections(np.empty((0, 4), np.float32), np.empty(0, np.uint16), np.empty(0, np.float32))


def _mean_precision(ticks: list[MatchedBoxes], classes: int, weights: Floats) -> Floats:
    """Returns the mean over the classes with true boxes for each row of weights; NaN for a row without true boxes."""
    by_class = np.stack([_precision(ticks, class_id, weights) for class_id in range(classes)])
    defined = np.isfinite(by_class)
    total = np.where(defined, by_class, 0.0).sum(axis=0)
    number = defined.sum(axis=0)
    return np.asarray(np.divide(total, number, out=np.full(len(weights), np.nan), where=number > 0))


def _precision(ticks: list[MatchedBoxes], class_id: int, weights: Floats) -> Floats:
    """Returns the average precision of a class for each row of weights, as `average_precision` for weights of 1."""
    truths = weights @ np.array([tick.truths[class_id] for tick in ticks], np.float64)
    lengths = [len(tick.scores[class_id]) for tick in ticks]
    if not sum(lengths):
        return np.where(truths > 0, 0.0, np.nan)
    scores = np.concatenate([tick.scores[class_id] for tick in ticks])
    order = np.argsort(-scores, kind="stable")
    hits = np.concatenate([tick.hits[class_id] for tick in ticks])[order]
    of_tick = np.repeat(np.arange(len(ticks)), lengths)[order]
    found = weights[:, of_tick]
    correct = found * hits
    precision = np.cumsum(correct, axis=1) / np.maximum(np.cumsum(found, axis=1), 1e-12)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    area = (envelope * correct).sum(axis=1)
    return np.asarray(np.divide(area, truths, out=np.full(len(weights), np.nan), where=truths > 0))
