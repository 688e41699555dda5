"""Streaming accuracy: outputs against the true labels or boxes of the tick at which they count.

A tick is a camera frame at the time at which it is due. Two outputs can be scored there, which are two measures:

- at the tick: the newest output that was ready when the tick was due, whatever tick it was made for (`newest_ready`). It is
  the measure of Li, Wang and Ramanan, "Towards Streaming Perception" (ECCV 2020), which charges the time of every
  computation, with mean IoU in place of average precision for segmentation;
- for the tick: the output that was made for it, however long after the tick was due it was ready.

    scores = StreamingScores(card.labels.names)
    scores.add(truth, mask, origin="warped", age_ns=200_000_000)
    scores.add(truth, None, origin="none")
    scores.mean_iou(), scores.mean_iou(with_missing=True), scores.iou_by_class(), scores.by_age()
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from modelling.evaluation.metrics import UNLABELLED, BoxMatcher, Confusion
from shared.messages.results import Detections

Mask = npt.NDArray[np.uint8]
Tallies = npt.NDArray[np.int64]  # …×3×classes: pixels that are right, those of the true class, and those predicted.

AGE_EDGES_MS = (0, 50, 150, 250, 350, 450, 550, 1000)  # Lower ends of the age bins; the last bin has no upper end.


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
    age_ns: int | None  # How much older than the tick the output's frame is; None without an output.
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
    def accuracy(self, *, with_missing: bool = False) -> float:
        """Returns the accuracy of the outputs, 0 to 1; NaN without ticks.

        `with_missing`: ticks without an output count too, with everything that is true in them missed.
        """

    @abstractmethod
    def by_class(self) -> dict[str, float]:
        """Returns the accuracy of each class that is in the truth."""

    def where(self, condition: Callable[[ScoredTick[T]], bool]) -> Self:
        """Returns the scores of the ticks that meet a condition."""
        return type(self)(self.names, filter(condition, self.ticks))

    def by_age(self, edges_ms: Sequence[float] = AGE_EDGES_MS) -> dict[float, Self]:
        """Returns the ticks with an output by the lower end of their age bin, in ms, without empty bins."""
        bins: dict[float, Self] = {}
        for tick in self.ticks:
            if tick.age_ns is not None:
                edge = edges_ms[max(0, int(np.searchsorted(edges_ms, tick.age_ns / 1e6, side="right")) - 1)]
                bins.setdefault(edge, type(self)(self.names)).ticks.append(tick)
        return dict(sorted(bins.items()))

    def by_drive(self) -> dict[str, Self]:
        """Returns the ticks by drive, in the order of their first tick."""
        drives: dict[str, Self] = {}
        for tick in self.ticks:
            drives.setdefault(tick.drive, type(self)(self.names)).ticks.append(tick)
        return drives

    def ages_ms(self) -> npt.NDArray[np.float64]:
        """Returns the ages of the outputs."""
        return np.array([tick.age_ns / 1e6 for tick in self.ticks if tick.age_ns is not None], np.float64)

    def origins(self) -> dict[str, int]:
        """Returns the number of ticks by origin."""
        return dict(Counter(tick.origin for tick in self.ticks).most_common())


def joined(parts: Sequence[ScoredTicks[T]]) -> ScoredTicks[T]:
    """Returns the ticks of several runs of the same classes together."""
    return type(parts[0])(parts[0].names, chain.from_iterable(part.ticks for part in parts))


class StreamingScores(ScoredTicks[Tallies]):
    """Scored ticks of a segmentation; the class `none` is not part of the mean."""

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Which classes are part of the mean."""
        return np.array([name != UNLABELLED for name in self.names])

    def add(
        self, truth: Mask, output: Mask | None, *, origin: str, age_ns: int | None = None, drive: str = ""
    ) -> ScoredTick[Tallies]:
        """Scores one tick and returns it.

        Args:
            truth: The true class of each pixel. Classes that the model does not have are not scored.
            output: The mask, of the same shape; None if the tick has no output. Pixels of classes that the model does not
                have, such as those outside of its crop, are not scored.
            origin: Where the output came from; see `edge.presenting.presenter.OutputOrigin`.
            age_ns: How much older than the tick the output's frame is; required with an output.
            drive: The drive or the run to which the tick belongs.
        """
        assert (output is None) == (age_ns is None), "an output has an age; a missing one has none"
        tick = ScoredTick(tallies(truth, output, len(self.names)), origin, age_ns, drive)
        self.ticks.append(tick)
        return tick

    def mean_iou(self, *, with_missing: bool = False) -> float:
        """Returns the mean IoU over the classes in the true labels except `none`; NaN without ticks.

        `with_missing`: ticks without an output count too, with all of their pixels wrong.
        """
        return float(mean_iou(self._sum(with_missing=with_missing), self.counted))

    def iou_by_class(self) -> dict[str, float]:
        """Returns the IoU of each class in the true labels except `none`."""
        summed = self._sum()
        present = self.counted & (summed[1] > 0)
        return {name: float(iou) for name, iou, is_in in zip(self.names, ious(summed), present, strict=True) if is_in}

    accuracy = mean_iou
    by_class = iou_by_class

    def pixel_accuracy(self) -> float:
        """Returns the share of the scored pixels that are right; NaN without any."""
        right, true, _ = self._sum().sum(axis=1)
        return float(right / true) if true else float("nan")

    def stacked(self, *, with_missing: bool = False) -> Tallies:
        """Returns the tallies of the ticks, ticks×3×classes."""
        chosen = [tick.tallies for tick in self.ticks if with_missing or not tick.is_missing]
        return np.stack(chosen) if chosen else np.zeros((0, 3, len(self.names)), np.int64)

    def _sum(self, *, with_missing: bool = False) -> Tallies:
        return np.asarray(self.stacked(with_missing=with_missing).sum(axis=0))


def tallies(truth: Mask, output: Mask | None, classes: int) -> Tallies:
    """Returns, by class, the right pixels, the pixels of the true class and the predicted pixels; 3×classes.

    Without an output (None), no pixel is right and none is predicted.
    """
    known = truth < classes
    if output is None:
        true = np.bincount(truth[known], minlength=classes)
        return np.stack((np.zeros_like(true), true, np.zeros_like(true)))
    known &= output < classes
    counts = Confusion.empty(classes).with_masks(truth[known], output[known]).counts
    return np.stack((np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)))


def ious(summed: npt.NDArray[np.number]) -> npt.NDArray[np.float64]:
    """Returns the IoU of each class from summed tallies …×3×classes; 0 for a class that no mask has."""
    right, true, predicted = (summed[..., row, :].astype(np.float64) for row in range(3))
    return right / np.maximum(true + predicted - right, 1.0)


def mean_iou(summed: npt.NDArray[np.number], counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Returns the mean IoU over the counted classes that have true pixels, from summed tallies …×3×classes.

    NaN where no counted class has any.
    """
    present = counted & (summed[..., 1, :] > 0)
    number = present.sum(axis=-1)
    total = np.where(present, ious(summed), 0.0).sum(axis=-1)
    return np.asarray(np.divide(total, number, out=np.full(number.shape, np.nan), where=number > 0))


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
