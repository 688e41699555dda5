"""Compares masks with the true class of each pixel at their tick."""

import numpy as np

from analysis.statistics.description import IntervalEstimate
from analysis.statistics.streaming_accuracy import accuracy_interval
from analysis.streaming.tick_outputs import RunModel, TickOutput
from modelling.evaluation.segmentation import LABELS, UNSEEN, EvaluationError
from modelling.evaluation.streaming import Mask, StreamingScores
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.records import Message
from shared.imaging.frames import Layout

_OTHER_SIZE = "its labels have another size"


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
        self._foreign = 0  # Labelled pixels of classes that the model does not have.
        self._highest = 0

    def look_at(self, bag: Bag, camera: str) -> None:
        """See TruthComparison. The labels are as large as the frames."""

    def read_result(self, message: Message) -> Mask:
        """See TruthComparison."""
        return np.asarray(decode(message)[0], np.uint8)

    def read_truth(self, message: Message) -> Mask:
        """See TruthComparison."""
        pixels, layout = decode(message)
        if layout is not Layout.MONO8:
            raise EvaluationError(
                f"{message.channel.topic} has {layout} images: labels must be mono8 images of class ids"
            )
        labels = np.asarray(pixels, np.uint8)
        labelled = labels != UNSEEN  # 255 marks pixels without a class.
        foreign = labelled & (labels >= len(self._names))
        self._labelled += int(np.count_nonzero(labelled))
        if foreign.any():
            self._foreign += int(np.count_nonzero(foreign))
            self._highest = max(self._highest, int(labels[foreign].max()))
        return labels

    def no_scores(self) -> StreamingScores:
        """See TruthComparison."""
        return StreamingScores(self._names)

    def add(self, scores: StreamingScores, truth: Mask, result: Mask | None, tick: TickOutput, drive: str) -> str:
        """See TruthComparison."""
        if result is not None and result.shape != truth.shape:
            return f"{_OTHER_SIZE} ({_size(truth)}, its output {_size(result)})"
        scores.add(truth, result, origin=tick.origin, age_ns=tick.age_ns, drive=drive)
        return ""

    def interval(self, scores: StreamingScores, *, with_missing: bool = False) -> IntervalEstimate:
        """See TruthComparison."""
        return accuracy_interval(scores, with_missing=with_missing)

    def cautions(self) -> list[str]:
        """See TruthComparison."""
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
