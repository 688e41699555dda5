"""Streaming accuracy: outputs against the true labels or boxes of the tick at which they count.

A tick is a camera frame at the time at which it is due. Two outputs can be scored there, which are two measures:

- at the tick: the newest output that was ready when the tick was due, whatever tick it was made for (`newest_ready`). It is
  the measure of Li, Wang and Ramanan, "Towards Streaming Perception" (ECCV 2020), which charges the time of every
  computation, with mean IoU in place of average precision for segmentation;
- for the tick: the output that was made for it, however long after the tick was due it was ready.

    scores = StreamingScores(card.labels.names)
    scores.add(truth, mask, origin="warped", age_ns=200_000_000)
    scores.add(truth, None, origin="none")
    scores.accuracy(), scores.accuracy(with_missing=True), scores.by_class(), scores.by_age()
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from modelling.evaluation.metrics import (
    HEADLINE_SIZE,
    MatchedBoxes,
    Tallies,
    TrueObjects,
    counted_classes,
    defined_mean,
    ious,
    matched_boxes,
    mean_iou,
    precision_area,
    tallies,
)
from shared.messages.results import Detections

Mask = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

AGE_EDGES_MS = (0, 50, 150, 250, 350, 450, 550, 1000)  # Lower ends of the age bins; the last bin has no upper end.
_CHUNK = 100  # Replicates that are computed together, which bounds the memory.


def newest_ready(made_for: Sequence[int], ready_ns: Sequence[int], due_ns: Sequence[int | None]) -> list[int | None]:
    """Returns which output counts at each tick: of those that were ready when it was due, that of the latest tick.

    An output that is ready later than one of a later tick never counts, and a tick for which none was made withdraws nothing.

    Args:
        made_for: The number of the tick that each output was made for.
        ready_ns: The time at which each output was ready.
        due_ns: The time at which each tick was due; None if it is unknown.

    Returns:
        A number of `made_for` for each tick; None if no output was ready, or its time is unknown.
    """
    order = np.argsort(np.asarray(ready_ns, np.int64), kind="stable")
    times_ns = np.asarray(ready_ns, np.int64)[order]
    newest = np.maximum.accumulate(np.asarray(made_for, np.int64)[order]) if len(order) else order
    ready = [0 if due is None else int(np.searchsorted(times_ns, due, side="right")) for due in due_ns]
    return [int(newest[count - 1]) if count else None for count in ready]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScoredTick(Generic[T]):
    """One tick: what is right and wrong in its output, and where the output came from."""

    tallies: T  # For a mask: the pixels by class, 3×classes.
    origin: str
    age_ns: int | None  # The time from the output's frame to the tick; None without an output.
    drive: str  # The drive or the run to which the tick belongs.

    @property
    def is_missing(self) -> bool:
        """True if the tick has no output."""
        return self.age_ns is None


class ScoredTicks(ABC, Generic[T]):
    """Scored ticks of one model's classes, in the order of time within a drive."""

    def __init__(self, names: Sequence[str], ticks: Iterable[ScoredTick[T]] = ()) -> None:
        """`names` are the names of all classes."""
        self.names = tuple(names)
        self.ticks = list(ticks)

    @abstractmethod
    def tally(self, truth: Any, output: Any) -> T:
        """Counts what is right and wrong in an output; None is a missing one, for which everything true is missed."""

    @abstractmethod
    def accuracy(self, *, with_missing: bool = False) -> float:
        """Returns the accuracy of the outputs, 0 to 1; NaN without ticks.

        `with_missing`: ticks without an output count too, with everything that is true in them missed.
        """

    @abstractmethod
    def by_class(self) -> dict[str, float]:
        """Returns the accuracy of each class that is in the truth."""

    def add(self, truth: Any, output: Any, *, origin: str, age_ns: int | None = None, drive: str = "") -> ScoredTick[T]:
        """Scores one tick and returns it.

        Args:
            truth: What is true at the tick; see the classes of the tasks.
            output: The result that counts at the tick, in the same pixels; None if the tick has none.
            origin: Where the output came from; see `edge.presenting.presenter.OutputOrigin`.
            age_ns: How much older than the tick the output's frame is; required with an output.
            drive: The drive or the run to which the tick belongs.
        """
        assert (output is None) == (age_ns is None), "an output has an age; a missing one has none"
        tick = ScoredTick(self.tally(truth, output), str(origin), age_ns, drive)
        self.ticks.append(tick)
        return tick

    def of(self, ticks: Iterable[ScoredTick[T]]) -> Self:
        """Returns the scores of other ticks of the same classes."""
        other = copy(self)
        other.ticks = list(ticks)
        return other

    def where(self, condition: Callable[[ScoredTick[T]], bool]) -> Self:
        """Returns the scores of the ticks that meet a condition."""
        return self.of(filter(condition, self.ticks))

    def counted(self, *, with_missing: bool = False) -> list[T]:
        """Returns what is right and wrong in the ticks that count."""
        return [tick.tallies for tick in self.ticks if with_missing or not tick.is_missing]

    def by_age(self, edges_ms: Sequence[float] = AGE_EDGES_MS) -> dict[float, Self]:
        """Returns the ticks with an output by the lower end of their age bin, in ms, without empty bins."""
        bins: dict[float, Self] = {}
        for tick in self.ticks:
            if tick.age_ns is not None:
                edge = edges_ms[max(0, int(np.searchsorted(edges_ms, tick.age_ns / 1e6, side="right")) - 1)]
                bins.setdefault(edge, self.of(())).ticks.append(tick)
        return dict(sorted(bins.items()))

    def by_drive(self) -> dict[str, Self]:
        """Returns the ticks by drive, in the order of their first tick."""
        drives: dict[str, Self] = {}
        for tick in self.ticks:
            drives.setdefault(tick.drive, self.of(())).ticks.append(tick)
        return drives

    def ages_ms(self) -> npt.NDArray[np.float64]:
        """Returns the ages of the outputs."""
        return np.array([tick.age_ns / 1e6 for tick in self.ticks if tick.age_ns is not None], np.float64)

    def origins(self) -> dict[str, int]:
        """Returns the number of ticks by origin."""
        return dict(Counter(tick.origin for tick in self.ticks).most_common())


def joined(parts: Sequence[ScoredTicks[T]]) -> ScoredTicks[T]:
    """Returns the ticks of several runs of the same classes together."""
    return parts[0].of(chain.from_iterable(part.ticks for part in parts))


class StreamingScores(ScoredTicks[Tallies]):
    """Scored ticks of a segmentation: the accuracy is the mean IoU over the true classes except `none`.

    The truth of a tick is the true class of each pixel, the output a mask of the same shape. Pixels are not scored whose
    class the model does not have, such as those outside of its crop in the output.
    """

    def tally(self, truth: Mask, output: Mask | None) -> Tallies:
        """See ScoredTicks."""
        return tallies(truth, output, len(self.names))

    def accuracy(self, *, with_missing: bool = False) -> float:
        """See ScoredTicks."""
        return float(self.accuracies(self.stacked(with_missing=with_missing).sum(axis=0)))

    def accuracies(self, summed: npt.NDArray[np.number]) -> Floats:
        """Returns the mean IoU of each sum of tallies, …×3×classes; NaN for a sum without any counted class."""
        return mean_iou(summed, counted_classes(self.names))

    def by_class(self) -> dict[str, float]:
        """See ScoredTicks."""
        summed = self.stacked().sum(axis=0)
        present = counted_classes(self.names) & (summed[1] > 0)
        return {name: float(iou) for name, iou, is_in in zip(self.names, ious(summed), present, strict=True) if is_in}

    def pixel_accuracy(self) -> float:
        """Returns the share of the scored pixels that are right; NaN without any."""
        right, true, _ = self.stacked().sum(axis=(0, 2))
        return float(right / true) if true else float("nan")

    def stacked(self, *, with_missing: bool = False) -> Tallies:
        """Returns the tallies of the ticks that count, ticks×3×classes."""
        return np.array(self.counted(with_missing=with_missing), np.int64).reshape(-1, 3, len(self.names))


class StreamingBoxes(ScoredTicks[MatchedBoxes]):
    """Scored ticks of a detector: the accuracy is the mean of the average precision over the classes with true boxes.

    The truth of a tick is its true boxes N×4 (x1, y1, x2, y2) and their class ids, the output the found boxes.
    """

    def __init__(
        self,
        names: Sequence[str],
        ticks: Iterable[ScoredTick[MatchedBoxes]] = (),
        *,
        smallest: float = HEADLINE_SIZE,
    ) -> None:
        """`smallest` is the root of the area of the smallest true box that counts, in pixels of the boxes."""
        super().__init__(names, ticks)
        self._smallest = smallest

    def tally(self, truth: TrueObjects, output: Detections | None) -> MatchedBoxes:
        """See ScoredTicks."""
        return matched_boxes(output or _NOTHING, truth, len(self.names), self._smallest)

    def accuracy(self, *, with_missing: bool = False) -> float:
        """See ScoredTicks."""
        ticks = self.counted(with_missing=with_missing)
        return float(_mean_precision(ticks, len(self.names), np.ones((1, len(ticks))))[0])

    def by_class(self) -> dict[str, float]:
        """See ScoredTicks."""
        ticks = self.counted()
        weights = np.ones((1, len(ticks)))
        values = {name: _precision(ticks, number, weights)[0] for number, name in enumerate(self.names)}
        return {name: float(value) for name, value in values.items() if np.isfinite(value)}

    def replicates(self, weights: Floats, *, with_missing: bool = False) -> Floats:
        """Returns the accuracy if each tick that counts occurred as often as a row of `weights` says."""
        ticks = self.counted(with_missing=with_missing)
        parts = [weights[start : start + _CHUNK] for start in range(0, len(weights), _CHUNK)]
        return np.concatenate([_mean_precision(ticks, len(self.names), part) for part in parts])


_NOTHING = Detections(np.empty((0, 4), np.float32), np.empty(0, np.uint16), np.empty(0, np.float32))


def _mean_precision(ticks: list[MatchedBoxes], classes: int, weights: Floats) -> Floats:
    """Returns the mean over the classes with true boxes for each row of weights; NaN for a row without true boxes."""
    by_class = np.stack([_precision(ticks, class_id, weights) for class_id in range(classes)])
    return defined_mean(by_class, np.isfinite(by_class), axis=0)


def _precision(ticks: list[MatchedBoxes], class_id: int, weights: Floats) -> Floats:
    """Returns the average precision of a class for each row of weights, as `average_precision` for weights of 1."""
    truths = weights @ np.array([tick.truths[class_id] for tick in ticks], np.float64)
    scores = np.concatenate([np.empty(0), *(tick.scores[class_id] for tick in ticks)])
    hits = np.concatenate([np.empty(0, bool), *(tick.hits[class_id] for tick in ticks)])
    order = np.argsort(-scores, kind="stable")
    of_tick = np.repeat(np.arange(len(ticks)), [len(tick.scores[class_id]) for tick in ticks])[order]
    found = weights[:, of_tick]
    return precision_area(found * hits[order], found, truths)
