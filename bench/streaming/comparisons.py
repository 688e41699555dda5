"""How the results of each task are compared with the truth of their tick. The table is `COMPARISONS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.statistics.description import IntervalEstimate
from bench.statistics.streaming_accuracy import accuracy_interval
from bench.streaming.tick_outputs import TickOutput
from modelling.evaluation.segmentation import LABELS, UNSEEN, EvaluationError
from modelling.evaluation.streaming import Mask, ScoredTicks, StreamingScores
from rosbag_tools.reading.frames import decode
from rosbag_tools.reading.records import Message
from shared.imaging.frames import Layout

_OTHER_SIZE = "its labels have another size"


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model of a run, as far as its manifest describes it."""

    task: str
    names: tuple[str, ...]  # Of the classes.
    height: int  # Of its input, in pixels.
    width: int

    @classmethod
    def of(cls, manifest: Mapping[str, Any], folder: Path) -> "RunModel":
        """Returns the model of a run.

        Raises:
            EvaluationError: The manifest does not describe it, or its results cannot be compared.
        """
        model = manifest.get("model")
        model = model if isinstance(model, Mapping) else {}
        task, names = model.get("task"), model.get("labels")
        sides = [model.get("height"), model.get("width")]
        is_described = isinstance(names, list) and names and all(isinstance(side, int) and side > 0 for side in sides)
        if not isinstance(task, str) or not is_described:
            raise EvaluationError(
                f"{folder}: its manifest does not name the classes of the model, as those of earlier versions: play the run "
                "again"
            )
        if task not in COMPARISONS:
            raise EvaluationError(
                f"{folder}: its model is for {task}, and streaming accuracy compares the results of "
                f"{' and '.join(COMPARISONS)}: report the run without --truth"
            )
        return cls(task, tuple(map(str, names or ())), *map(int, sides))  # type: ignore[arg-type]  # Checked above.


class Comparison(Protocol):
    """Compares the results of one run with their truth. Built as `Comparison(model)`."""

    metric: str  # Such as "mean IoU".
    by_class: str  # The same of one class, such as "IoU".
    stored: str  # The folder into which the sink `bag` writes the results.
    result_topic: str  # The last part of the topic of a camera's results.
    truth_topic: str  # The last part of the topic of a camera's truth.

    def read_result(self, message: Message) -> Any:
        """Decodes a stored result."""

    def read_truth(self, message: Message) -> Any:
        """Decodes the truth of a frame.

        Raises:
            EvaluationError: The topic holds something else.
        """

    def no_scores(self) -> ScoredTicks[Any]:
        """Returns scores without ticks."""

    def add(self, scores: Any, truth: Any, result: Any, tick: TickOutput, drive: str) -> str:
        """Scores a tick, whose result is None if it has no output. Returns the reason if they cannot be compared."""

    def interval(self, scores: Any, *, with_missing: bool = False) -> IntervalEstimate:
        """Returns the accuracy of ticks with its interval."""

    def cautions(self) -> list[str]:
        """Returns what the truth holds that could not be scored.

        Raises:
            EvaluationError: Nothing could be scored.
        """


class MaskComparison:
    """Compares masks with the true class of each pixel."""

    metric = "mean IoU"
    by_class = "IoU"
    stored = "masks_bag"
    result_topic = "masks"
    truth_topic = LABELS.strip("/")

    def __init__(self, model: RunModel) -> None:
        self._names = model.names
        self._labelled = 0  # Pixels with a class.
        self._foreign = 0  # Those whose class the model does not have.
        self._highest = 0

    def read_result(self, message: Message) -> Mask:
        """See Comparison."""
        return np.asarray(decode(message)[0], np.uint8)

    def read_truth(self, message: Message) -> Mask:
        """See Comparison."""
        pixels, layout = decode(message)
        if layout is not Layout.MONO8:
            raise EvaluationError(
                f"{message.channel.topic} has {layout} images: labels must be mono8 images of class ids"
            )
        labels = np.asarray(pixels, np.uint8)
        counts = np.bincount(labels.ravel(), minlength=UNSEEN + 1)[:UNSEEN]  # 255 marks pixels without a class.
        self._labelled += int(counts.sum())
        self._foreign += int(counts[len(self._names) :].sum())
        self._highest = max(self._highest, int(np.flatnonzero(counts)[-1]) if counts.any() else 0)
        return labels

    def no_scores(self) -> StreamingScores:
        """See Comparison."""
        return StreamingScores(self._names)

    def add(self, scores: StreamingScores, truth: Mask, result: Mask | None, tick: TickOutput, drive: str) -> str:
        """See Comparison."""
        if result is not None and result.shape != truth.shape:
            return f"{_OTHER_SIZE} ({_size(truth)}, its output {_size(result)})"
        scores.add(truth, result, origin=tick.origin, age_ns=tick.age_ns, drive=drive)
        return ""

    def interval(self, scores: StreamingScores, *, with_missing: bool = False) -> IntervalEstimate:
        """See Comparison."""
        return accuracy_interval(scores, with_missing=with_missing)

    def cautions(self) -> list[str]:
        """See Comparison."""
        if not self._foreign:
            return []
        found = f"class ids up to {self._highest}, and the model has {len(self._names)} classes (0 to {len(self._names) - 1})"
        if self._foreign == self._labelled:
            raise EvaluationError(
                f"no true label is a class of the model: the labels have {found}; give labels that use the ids of the model's "
                "classes"
            )
        share = self._foreign / self._labelled
        return [f"{100 * share:.1f} % of the labelled pixels are not scored: they have {found}."]


def _size(mask: Mask) -> str:
    return "×".join(map(str, mask.shape[::-1]))


COMPARISONS: Mapping[str, Callable[[RunModel], Comparison]] = {"segmentation": MaskComparison}
