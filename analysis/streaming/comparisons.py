"""Compares the results of a run with the truth of their tick: masks and boxes, their contract and the table of all."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from analysis.statistics.description import IntervalEstimate
from analysis.statistics.streaming_accuracy import accuracy_interval, precision_interval
from analysis.streaming.tick_outputs import RunModel, TickOutput
from modelling.evaluation.bag_images import BOXES, LABELS, EvaluationError, label_names
from modelling.evaluation.class_map import class_map
from modelling.evaluation.detection import class_ids_by_name
from modelling.evaluation.metrics import HEADLINE_SIZE
from modelling.evaluation.streaming import Mask, ScoredTicks, StreamingBoxes, StreamingScores
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.ros_types import read_boxes, read_scores
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.reading.video_topics import with_pictures
from rosbag_tools.records import Message
from shared.imaging.frames import Layout
from shared.imaging.geometry import UNSEEN
from shared.messages.results import Detections

_Truth = tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]]


class BoxComparison:
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
        self._class_of = class_ids_by_name(model.names)
        self._smallest = HEADLINE_SIZE
        self._is_sized = False
        self._true = 0
        self._foreign: set[str] = set()
        self._foreign_boxes = 0

    def look_at(self, bag: Bag, camera: str, _truth: str) -> None:
        """See TruthComparison. The size of a frame sets the scale between its pixels and those of the model's input."""
        topic = named_topic(bag, camera.strip("/"))
        items = with_pictures(bag.messages({topic})) if topic else iter(())
        message = next((each for each in items if isinstance(each, Message) and not each.loss), None)
        if message is not None:
            height, width = decode(message)[0].shape[:2]
            self._smallest = HEADLINE_SIZE * float(np.sqrt(height * width / (self._model.height * self._model.width)))
            self._is_sized = True

    def read_result(self, message: Message) -> Detections:
        """See TruthComparison."""
        ids = {name: class_id for class_id, name in enumerate(self._model.names)}
        known = [
            (box, score, ids[box.name])
            for box, score in zip(read_boxes(message), read_scores(message), strict=True)
            if box.name in ids
        ]
        return Detections(
            _corners([box for box, _, _ in known]),
            np.array([class_id for _, _, class_id in known], np.uint16),
            np.array([score for _, score, _ in known], np.float32),
        )

    def read_truth(self, message: Message) -> _Truth:
        """See TruthComparison."""
        boxes = read_boxes(message)
        known = [box for box in boxes if box.name in self._class_of]
        self._true += len(boxes)
        self._foreign_boxes += len(boxes) - len(known)
        self._foreign |= {box.name for box in boxes} - self._class_of.keys()
        return _corners(known), np.array([self._class_of[box.name] for box in known], np.intp)

    def no_scores(self) -> StreamingBoxes:
        """See TruthComparison."""
        return StreamingBoxes(self._model.names)

    def add(
        self, scores: StreamingBoxes, truth: _Truth, result: Detections | None, tick: TickOutput, drive: str
    ) -> str:
        """See TruthComparison."""
        scores.add(truth, result, smallest=self._smallest, origin=tick.origin, age_ns=tick.age_ns, drive=drive)
        return ""

    def interval(self, scores: StreamingBoxes, *, with_missing: bool = False) -> IntervalEstimate:
        """See TruthComparison."""
        return precision_interval(scores, with_missing=with_missing)

    def cautions(self) -> list[str]:
        """See TruthComparison."""
        found = []
        if self._foreign:
            names = ", ".join(sorted(self._foreign))[:200]
            if self._foreign_boxes == self._true:
                raise EvaluationError(
                    f"no true box is of a class of the model: the boxes are {names}, the model has "
                    f"{', '.join(self._model.names)[:200]}; give boxes with the names of the model's classes"
                )
            share = 100 * self._foreign_boxes / self._true
            found.append(f"{share:.1f} % of the true boxes are not scored: the model has no {names}.")
        if not self._is_sized:
            found.append(
                f"The bag has no images, so objects count from {HEADLINE_SIZE:g} pixels of the frame on, instead of pixels of "
                "the model's input."
            )
        return found

    def note(self) -> str:
        """See TruthComparison. Boxes are compared by the names of the model's classes."""
        return ""

    def compared(self) -> dict[str, Any]:
        """See TruthComparison."""
        return {}


def _corners(boxes: Sequence[Box]) -> npt.NDArray[np.float32]:
    rows = [(box.x, box.y, box.x + box.width, box.y + box.height) for box in boxes]
    return np.array(rows, np.float32).reshape(-1, 4)


_OTHER_SIZE = "its labels have another size"


class MaskComparison:
    """Compares masks with the true class of each pixel."""

    metric = "mean IoU"
    by_class = "IoU"
    stored = "masks_bag"
    result_topic = "masks"
    truth_topic = LABELS.strip("/")

    def __init__(self, model: RunModel, map_file: Path | None = None) -> None:
        self._model, self._map_file = model, map_file
        self._classes = class_map(model.names, None)
        self._truth = ""  # The topic whose names the map has.
        self._labelled = 0  # Pixels with a class.
        self._foreign = 0  # Labelled pixels of classes that the model does not have.
        self._highest = 0

    def look_at(self, bag: Bag, _camera: str, truth: str) -> None:
        """See TruthComparison. The names of the labels decide which classes are compared."""
        classes = class_map(self._model.names, label_names(bag.path, truth), self._map_file)
        if self._truth and classes != self._classes:
            raise EvaluationError(
                f"{bag.path}: the labels on {self._truth} and {truth} have other names, which cannot be scored together: give "
                "bags whose labels have the same names"
            )
        self._classes, self._truth = classes, truth

    def read_result(self, message: Message) -> Mask:
        """See TruthComparison."""
        return self._classes.of_network(np.asarray(decode(message)[0], np.uint8))

    def read_truth(self, message: Message) -> Mask:
        """See TruthComparison."""
        pixels, layout = decode(message)
        if layout is not Layout.MONO8:
            raise EvaluationError(
                f"{message.channel.topic} has {layout} images: labels must be mono8 images of class ids"
            )
        labels = np.asarray(pixels, np.uint8)
        true = self._classes.of_truth(labels)
        labelled = labels != UNSEEN  # 255 marks pixels without a class.
        foreign = labelled & (true >= len(self._classes.names))
        self._labelled += int(np.count_nonzero(labelled))
        if foreign.any():
            self._foreign += int(np.count_nonzero(foreign))
            self._highest = max(self._highest, int(labels[foreign].max()))
        return true

    def no_scores(self) -> StreamingScores:
        """See TruthComparison."""
        return StreamingScores(self._classes.names)

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
        if self._foreign and self._foreign == self._labelled and not self._classes.is_identity:
            raise EvaluationError(
                f"none of the labelled pixels has a class to compare. {self.note()} Give another map with --map, or another bag"
            )
        if not self._foreign or not self._classes.is_identity:
            return []
        count = len(self._model.names)
        found = f"class ids up to {self._highest}, and the model has {count} classes (0 to {count - 1})"
        if self._foreign == self._labelled:
            raise EvaluationError(
                f"no true label is a class of the model: the labels have {found}; give labels that use the ids of the model's "
                "classes"
            )
        share = self._foreign / self._labelled
        return [f"{100 * share:.1f} % of the labelled pixels are not scored: they have {found}."]

    def note(self) -> str:
        """See TruthComparison."""
        return self._classes.describe(self._foreign / max(1, self._labelled))

    def compared(self) -> dict[str, Any]:
        """See TruthComparison."""
        return self._classes.to_json()


def _size(mask: Mask) -> str:
    return "×".join(map(str, mask.shape[::-1]))


class TruthComparison(Protocol):
    """Compares the results of one run with their truth. Built as `TruthComparison(model, map_file)`, see `comparison_for`."""

    metric: str  # Such as "mean IoU".
    by_class: str  # The same of one class, such as "IoU".
    stored: str  # The folder into which the sink `bag` writes the results.
    result_topic: str  # The last part of the topic of a camera's results.
    truth_topic: str  # The last part of the topic of a camera's truth.

    def look_at(self, bag: Bag, camera: str, truth: str) -> None:
        """Reads what the comparison must know of a camera in the bag with the truth, which is on the topic `truth`."""

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

    def note(self) -> str:
        """Returns which classes were compared; empty if the truth has those of the model."""

    def compared(self) -> dict[str, Any]:
        """Returns the same for JSON."""


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
    return next((topic.name for topic in bag.topics if topic.name.strip("/") == name), None)
