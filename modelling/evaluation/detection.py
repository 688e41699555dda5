"""How well a detector does on a bag with true boxes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.models.model import Model
from cloud.tasks.detection import objects
from modelling.evaluation.average_precision import BoxMatcher
from modelling.evaluation.detection_scores import HEADLINE_SIZE, counts_of_sizes, figures_of_sizes, lenient
from modelling.evaluation.segmentation import EvaluationError, labelled_camera, prepared, subject
from modelling.evaluation.time_sync import Pairing
from modelling.recipes import OBJECTS
from modelling.training.scenes.object_batches import sifted
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.boxes import read_boxes
from rosbag_tools.messages.images import read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import decode
from rosbag_tools.reading.records import Damage, Message
from shared.imaging import boxes
from shared.imaging.geometry import Resize, plan
from shared.messages.model_card import ModelCard

BOXES = "/boxes"


@dataclass(frozen=True, slots=True)
class DetectionEvaluation:
    """The figures of a detector on a bag."""

    card: ModelCard
    bag_sha256: str
    camera: str
    frames: int  # Judged.
    unmatched: int  # Pictures without boxes of their stamp, or unreadable.
    foreign_boxes: int  # Of what the model has no class for; not counted.
    score_threshold: float
    figures: dict[str, Any]  # As `modelling.evaluation.detection_scores.figures_of_sizes`.

    @property
    def mean_average_precision(self) -> float | None:
        """The mean over the classes of their average precision, of things from `HEADLINE_SIZE` on; None without any."""
        found = [sizes[f"from_{HEADLINE_SIZE:g}_px"]["average_precision"] for sizes in self.figures.values()]
        known = [each for each in found if each is not None]
        return sum(known) / len(known) if known else None

    def to_json(self) -> dict[str, Any]:
        """Plain types; a figure that does not exist is null."""
        return {
            **subject(self.card, self.bag_sha256, self.camera),
            "frames": self.frames,
            "unmatched": self.unmatched,
            "foreign_boxes": self.foreign_boxes,
            "score_threshold": self.score_threshold,
            "figures": self.figures,
        }


def evaluate_detection(
    model: Model,
    bag: Path,
    *,
    camera: str | None = None,
    frames: int | None = None,
    demosaic: str = "binning",
    on_frame: Callable[[int, int | None], None] = lambda _done, _of: None,
) -> DetectionEvaluation:
    """Run a detector over a bag's pictures and compare with the true boxes of the same stamp, in pixels of its input.

    The parameters are those of `modelling.evaluation.segmentation.evaluate`.

    Raises:
        SkylaneError: the bag cannot be read, has no such camera, or no boxes beside it.
    """
    camera, truth, count = labelled_camera(bag, camera, BOXES)
    judge = _Judge(model, demosaic)
    pairing: Pairing[Message, list[Box]] = Pairing()
    with Bag(bag) as opened:
        for pair in _pairs(opened, camera, truth, pairing):
            judge.add(*pair)
            on_frame(judge.frames, count if frames is None else min(frames, count))
            if judge.frames == frames:
                break
        else:
            pairing.end()
        sha256 = opened.sha256
    if not judge.frames:
        raise EvaluationError(f"{bag}: no picture on {camera} has boxes of the same stamp on {truth}")
    threshold = model.manifest.detection.score_threshold
    figures = figures_of_sizes(judge.counts, model.card.labels.names, threshold)
    return DetectionEvaluation(
        model.card, sha256, camera, judge.frames, pairing.unmatched, judge.foreign_boxes, threshold, figures
    )


def _pairs(
    bag: Bag, camera: str, truth: str, pairing: Pairing[Message, list[Box]]
) -> Iterator[tuple[Message, list[Box]]]:
    for item in bag.messages({camera, truth}):
        if isinstance(item, Damage):
            pairing.unmatched += item.channel is not None and item.channel.topic == camera
            continue
        stamp_ns = read_stamp(item.data, item.channel.wire)
        if item.channel.topic == camera:
            pair = pairing.with_picture(stamp_ns, item)
        else:
            pair = pairing.with_truth(stamp_ns, read_boxes(item))
        if pair is not None:
            yield pair


class _Judge:
    """Counts, frame by frame, which of the found boxes are true."""

    def __init__(self, model: Model, demosaic: str) -> None:
        self._model = model
        self._demosaic = demosaic
        self._lenient = lenient(model.manifest)
        card = model.card
        self._unmoved = plan(Resize.CROP, card.height, card.width, card.height, card.width)
        self._class_of = _classes(card.labels.names)
        self.counts: dict[float, BoxMatcher] = counts_of_sizes(len(card.labels.names))
        self.frames = 0
        self.foreign_boxes = 0

    def add(self, picture: Message, true: list[Box]) -> None:
        image, geometry = prepared(*decode(picture), self._model.card, self._demosaic)
        outputs = self._model.infer(image[np.newaxis])
        found = objects({head: values[0] for head, values in outputs.items()}, self._unmoved, self._lenient)
        rows = self._rows(true)
        rows[:, 1:] = boxes.apply(rows[:, 1:], geometry)
        known = np.concatenate(sifted(rows, self._model.card.height, self._model.card.width))
        for count in self.counts.values():
            count.add(found, known[:, 1:], known[:, 0].astype(np.intp))
        self.frames += 1

    def _rows(self, true: list[Box]) -> npt.NDArray[np.float32]:
        """Class, x1, y1, x2, y2 of the boxes that the model has a class for."""
        known = [box for box in true if box.name in self._class_of]
        self.foreign_boxes += len(true) - len(known)
        rows = [(self._class_of[box.name], box.x, box.y, box.x + box.width, box.y + box.height) for box in known]
        return np.array(rows, np.float32).reshape(-1, 5)


def _classes(names: tuple[str, ...]) -> dict[str, int]:
    """The model's class for each name of a true box: that of the same name, else that of its group."""
    classes = {name: class_id for class_id, group in enumerate(names) for name in OBJECTS.get(group, ())}
    classes |= {name: class_id for class_id, name in enumerate(names)}
    if not any(name in classes for group in OBJECTS.values() for name in group):
        raise EvaluationError(
            f"the model's classes ({', '.join(names)[:200]}) are none of the drive's: it cannot be judged by its boxes"
        )
    return classes
