"""Compares the results of a run with the truth of their tick: masks and boxes, their contract and the table of all."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.statistics.description import IntervalEstimate
from analysis.statistics.streaming_accuracy import accuracy_interval, precision_interval
from analysis.streaming.tick_outputs import RunModel
from modelling.evaluation.bag_images import BOXES, LABELS, EvaluationError, TrueBoxes, corners, label_names
from modelling.evaluation.class_map import TrueMasks, class_map
from modelling.evaluation.metrics import HEADLINE_SIZE, TrueObjects
from modelling.evaluation.streaming import Mask, ScoredTicks, StreamingBoxes, StreamingScores
from rosbag_tools.messages.ros_types import read_boxes, read_scores
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.reading.video_topics import with_pictures
from rosbag_tools.records import Message
from shared.imaging.frames import Layout
from shared.messages.results import Detections


class TruthComparison(ABC):
    """Compares the results of one run with their truth. Built as `TruthComparison(model, map_file)`, see `comparison_for`."""

    metric: str  # Such as "mean IoU".
    by_class: str  # The same of one class, such as "IoU".
    stored: str  # The folder into which the sink `bag` writes the results.
    result_topic: str  # The last part of the topic of a camera's results.
    truth_topic: str  # The last part of the topic of a camera's truth.

    @abstractmethod
    def look_at(self, bag: Bag, camera: str, truth: str) -> None:
        """Reads what the comparison must know of a camera in the bag with the truth, which is on the topic `truth`."""

    @abstractmethod
    def read_result(self, message: Message) -> Any:
        """Decodes a stored result."""

    @abstractmethod
    def read_truth(self, message: Message) -> Any:
        """Decodes the truth of a frame.

        Raises:
            EvaluationError: The topic holds something else.
        """

    @abstractmethod
    def no_scores(self) -> ScoredTicks[Any]:
        """Returns scores without ticks."""

    @abstractmethod
    def interval(self, scores: Any, *, with_missing: bool = False) -> IntervalEstimate:
        """Returns the accuracy of ticks with its interval."""

    @abstractmethod
    def cautions(self) -> list[str]:
        """Returns what the truth holds that could not be scored.

        Raises:
            EvaluationError: Nothing could be scored.
        """

    def problem(self, _truth: Any, _result: Any) -> str:
        """Returns why a result cannot be compared with the truth; empty if it can."""
        return ""

    def note(self) -> str:
        """Returns which classes were compared; empty if the truth has those of the model."""
        return ""

    def compared(self) -> dict[str, Any]:
        """Returns the same for JSON."""
        return {}


class BoxComparison(TruthComparison):
    """Compares boxes in pixels of the camera's frames. Small objects do not count, as in the model's evaluation."""

    metric = "average precision"
    by_class = "average precision"
    stored = "detections_bag"
    result_topic = "detections"
    truth_topic = BOXES.strip("/")

    def __init__(self, model: RunModel, map_file: Path | None = None) -> None:
        if map_file is not None:
            raise EvaluationError("--map is for the classes of masks, and the run has boxes: leave it out")
        self._model = model
        self._truth = TrueBoxes(model.names)
        self._smallest = HEADLINE_SIZE
        self._is_sized = False

    def look_at(self, bag: Bag, camera: str, _truth: str) -> None:
        """See TruthComparison. The size of a frame sets the scale between its pixels and those of the model's input."""
        topic = named_topic(bag, camera)
        items = with_pictures(bag.messages({topic})) if topic else iter(())
        message = next((each for each in items if isinstance(each, Message) and not each.loss), None)
        if message is not None:
            height, width = decode(message)[0].shape[:2]
            self._smallest = HEADLINE_SIZE * float(np.sqrt(height * width / (self._model.height * self._model.width)))
            self._is_sized = True

    def read_result(self, message: Message) -> Detections:
        """See TruthComparison."""
        ids = {name: class_id for class_id, name in enumerate(self._model.names)}
        read = zip(read_boxes(message), read_scores(message), strict=True)
        known = [(box, score) for box, score in read if box.name in ids]
        return Detections(
            corners([box for box, _ in known]),
            np.array([ids[box.name] for box, _ in known], np.uint16),
            np.array([score for _, score in known], np.float32),
        )

    def read_truth(self, message: Message) -> TrueObjects:
        """See TruthComparison."""
        return self._truth.known(read_boxes(message))

    def no_scores(self) -> StreamingBoxes:
        """See TruthComparison."""
        return StreamingBoxes(self._model.names, smallest=self._smallest)

    def interval(self, scores: StreamingBoxes, *, with_missing: bool = False) -> IntervalEstimate:
        """See TruthComparison."""
        return precision_interval(scores, with_missing=with_missing)

    def cautions(self) -> list[str]:
        """See TruthComparison."""
        found = []
        if foreign := self._truth.foreign:
            names = ", ".join(sorted(foreign))[:200]
            if foreign.total() == self._truth.count:
                raise EvaluationError(
                    f"no true box is of a class of the model: the boxes are {names}, the model has "
                    f"{', '.join(self._model.names)[:200]}; give boxes with the names of the model's classes"
                )
            share = 100 * foreign.total() / self._truth.count
            found.append(f"{share:.1f} % of the true boxes are not scored: the model has no {names}.")
        if not self._is_sized:
            found.append(
                f"The bag has no images, so objects count from {HEADLINE_SIZE:g} pixels of the frame on, instead of pixels of "
                "the model's input."
            )
        return found


class MaskComparison(TruthComparison):
    """Compares masks with the true class of each pixel."""

    metric = "mean IoU"
    by_class = "IoU"
    stored = "masks_bag"
    result_topic = "masks"
    truth_topic = LABELS.strip("/")

    def __init__(self, model: RunModel, map_file: Path | None = None) -> None:
        self._model, self._map_file = model, map_file
        self._truth = TrueMasks(class_map(model.names, None))
        self._topic = ""  # The topic whose names the map has.

    def look_at(self, bag: Bag, _camera: str, truth: str) -> None:
        """See TruthComparison. The names of the labels decide which classes are compared."""
        classes = class_map(self._model.names, label_names(bag.path, truth), self._map_file)
        if self._topic and classes != self._truth.classes:
            raise EvaluationError(
                f"{bag.path}: the labels on {self._topic} and {truth} have other names, which cannot be scored together: give "
                "bags whose labels have the same names"
            )
        self._truth, self._topic = TrueMasks(classes), truth

    def read_result(self, message: Message) -> Mask:
        """See TruthComparison."""
        return self._truth.classes.of_network(np.asarray(decode(message)[0], np.uint8))

    def read_truth(self, message: Message) -> Mask:
        """See TruthComparison."""
        pixels, layout = decode(message)
        if layout is not Layout.MONO8:
            raise EvaluationError(
                f"{message.channel.topic} has {layout} images: labels must be mono8 images of class ids"
            )
        return self._truth.compared(np.asarray(pixels))

    def no_scores(self) -> StreamingScores:
        """See TruthComparison."""
        return StreamingScores(self._truth.classes.names)

    def problem(self, truth: Mask, result: Mask | None) -> str:
        """See TruthComparison."""
        if result is None or result.shape == truth.shape:
            return ""
        label, output = ("×".join(map(str, mask.shape[::-1])) for mask in (truth, result))
        return f"its labels have another size ({label}, its output {output})"

    def interval(self, scores: StreamingScores, *, with_missing: bool = False) -> IntervalEstimate:
        """See TruthComparison."""
        return accuracy_interval(scores, with_missing=with_missing)

    def cautions(self) -> list[str]:
        """See TruthComparison."""
        truth = self._truth
        if not truth.ignored:
            return []
        if not truth.classes.is_identity:
            if truth.ignored == truth.labelled:
                raise EvaluationError(
                    f"none of the labelled pixels has a class to compare. {self.note()} Give another map with --map, or another "
                    "bag"
                )
            return []
        count = len(self._model.names)
        found = f"class ids up to {truth.highest_ignored}, and the model has {count} classes (0 to {count - 1})"
        if truth.ignored == truth.labelled:
            raise EvaluationError(
                f"no true label is a class of the model: the labels have {found}; give labels that use the ids of the model's "
                "classes"
            )
        return [
            f"{100 * truth.ignored / truth.labelled:.1f} % of the labelled pixels are not scored: they have {found}."
        ]

    def note(self) -> str:
        """See TruthComparison."""
        return self._truth.describe()

    def compared(self) -> dict[str, Any]:
        """See TruthComparison."""
        return self._truth.classes.to_json()


COMPARISONS: Mapping[str, Callable[[RunModel, Path | None], TruthComparison]] = {
    "segmentation": MaskComparison,
    "detection": BoxComparison,
}


def comparison_for(manifest: Mapping[str, Any], folder: Path, map_file: Path | None = None) -> TruthComparison:
    """Returns the comparison for the results of a run; `manifest` is that of the run in `folder`.

    `map_file` maps the classes of a model's masks to those of the truth, see `modelling.evaluation.class_map`.

    Raises:
        EvaluationError: The manifest does not describe the model, or the results of its task cannot be compared.
    """
    model = RunModel.of(manifest, folder)
    if model.task not in COMPARISONS:
        raise EvaluationError(
            f"{folder}: its model is for {model.task}, and streaming accuracy compares the results of "
            f"{' and '.join(COMPARISONS)}: report the run without --truth"
        )
    return COMPARISONS[model.task](model, map_file)


def named_topic(bag: Bag, name: str) -> str | None:
    """Returns the name of a topic as it is in the bag, with or without a leading slash; None if there is no such topic."""
    return next((topic.name for topic in bag.topics if topic.name.strip("/") == name.strip("/")), None)
