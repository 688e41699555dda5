"""Compares detections with the true boxes of their tick."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from analysis.statistics.description import IntervalEstimate
from analysis.statistics.streaming_accuracy import precision_interval
from analysis.streaming.bag_topics import named_topic
from analysis.streaming.tick_outputs import RunModel, TickOutput
from modelling.evaluation.average_precision import HEADLINE_SIZE
from modelling.evaluation.detection import class_ids_by_name
from modelling.evaluation.segmentation import EvaluationError
from modelling.evaluation.streaming_boxes import StreamingBoxes
from modelling.evaluation.true_boxes import BOXES
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.ros_types import read_boxes, read_scores
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.reading.video_topics import with_pictures
from rosbag_tools.records import Message
from shared.messages.results import Detections

_Truth = tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]]


class BoxComparison:
    """Compares boxes in pixels of the camera's frames. Small objects do not count, as in the model's evaluation."""

    metric = "average precision"
    by_class = "average precision"
    stored = "detections_bag"
    result_topic = "detections"
    truth_topic = BOXES.strip("/")

    def __init__(self, model: RunModel) -> None:
        self._model = model
        self._class_of = class_ids_by_name(model.names)
        self._smallest = HEADLINE_SIZE
        self._is_sized = False
        self._true = 0
        self._foreign: set[str] = set()
        self._foreign_boxes = 0

    def look_at(self, bag: Bag, camera: str) -> None:
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


def _corners(boxes: Sequence[Box]) -> npt.NDArray[np.float32]:
    rows = [(box.x, box.y, box.x + box.width, box.y + box.height) for box in boxes]
    return np.array(rows, np.float32).reshape(-1, 4)
