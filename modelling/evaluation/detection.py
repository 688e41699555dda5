"""Evaluates a detector on a bag with true boxes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.text import Text

from modelling.evaluation.bag_images import (
    BOXES,
    EvaluationError,
    EvaluationSettings,
    LabelledImages,
    prepared,
    split_boxes,
)
from modelling.evaluation.metrics import (
    HEADLINE_SIZE,
    LOW_SCORE,
    matchers_by_size,
    metrics_by_size,
)
from modelling.evaluation.segmentation import BagEvaluation
from rosbag_tools.drive.scene import OBJECTS, Box
from shared.imaging import boxes
from shared.imaging.geometry import Geometry, Resize, plan
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.messages.results import Detections
from shared.tasks.detection import objects
from shared.terminal_table import Table


@dataclass(frozen=True, slots=True)
class DetectionEvaluation(BagEvaluation):
    """A detector's results on a bag."""

    foreign_boxes: int  # True boxes whose class the model does not have; not evaluated.
    score_threshold: float
    metrics: dict[str, Any]  # See `modelling.evaluation.metrics.metrics_by_size`.

    @property
    def accuracy(self) -> float | None:
        """The mean average precision over the classes, for objects from `HEADLINE_SIZE` on; None without any."""
        values = [sizes[f"from_{HEADLINE_SIZE:g}_px"]["average_precision"] for sizes in self.metrics.values()]
        defined = [each for each in values if each is not None]
        return sum(defined) / len(defined) if defined else None

    @property
    def summary(self) -> str:
        """The results in one line."""
        return (
            f"boxes match from an IoU of 0.5; recall and precision at a score of {self.score_threshold:g} · "
            f"{self.frames} frames · {self.unmatched} without boxes{self.untrained}"
        )

    def table(self, title: str) -> Table:
        """Returns average precision, recall and precision by class and size."""
        caption = "size: root of the area of the smallest counted box, in pixels of the input"
        table = Table(title=title, caption=caption)
        for column in ("class", "size", "boxes", "AP", "recall", "precision"):
            table.add_column(column, justify="left" if column == "class" else "right")
        for name, sizes in self.metrics.items():
            for size, metrics in sizes.items():
                values = (metrics[key] for key in ("average_precision", "recall", "precision"))
                shown = ("?" if value is None else f"{value:.3f}" for value in values)
                table.add_row(
                    Text(name), size.removeprefix("from_").removesuffix("_px"), str(metrics["truths"]), *shown
                )
        return table

    def to_json(self) -> dict[str, Any]:
        """Returns the results as plain types; an undefined number is None."""
        return {
            **self.subject(),
            "frames": self.frames,
            "unmatched": self.unmatched,
            "foreign_boxes": self.foreign_boxes,
            "score_threshold": self.score_threshold,
            "figures": self.metrics,
        }


def evaluate_detection(model: Model, bag: Path, settings: EvaluationSettings) -> DetectionEvaluation:
    """Compares a detector's boxes with the true ones of the same timestamp, in pixels of the model's input.

    Raises:
        SkylaneError: the bag cannot be read, or has no such camera with boxes.
    """
    images = LabelledImages(bag, settings.camera, BOXES, settings.frames)
    card, manifest, frames = model.card, model.manifest.with_score_threshold(LOW_SCORE), 0
    identity = plan(Resize.CROP, card.height, card.width, card.height, card.width)
    truth, matchers = TrueBoxes(card), matchers_by_size(len(card.labels.names))
    for frames, labelled in enumerate(images, start=1):
        image, geometry = prepared(labelled.pixels, labelled.layout, card)
        found = objects(model.infer_one(image), identity, manifest)
        true_boxes, class_ids = truth.in_input(labelled.truth, geometry)
        for matcher in matchers.values():
            matcher.add(found, true_boxes, class_ids)
        settings.on_frame(frames, images.total)
    threshold = model.manifest.detection.score_threshold
    metrics = metrics_by_size(matchers, card.labels.names, threshold)
    return DetectionEvaluation(
        card, images.sha256, images.camera, frames, images.unmatched, truth.foreign, threshold, metrics
    )


class TrueBoxes:
    """Converts the true boxes of a frame to a detector's classes and input, and counts those of other classes."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._class_of = class_ids_by_name(card.labels.names)
        self.foreign = 0

    def in_input(
        self, true: Sequence[Box] | Detections, geometry: Geometry
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]]:
        """Returns the boxes N×4 in pixels of the input, and their class ids.

        Boxes of a bag are clipped to the input. A detector's own boxes count as they are.

        Raises:
            EvaluationError: the detector has none of the classes of a bag.
        """
        if isinstance(true, Detections):
            return boxes.to_target(true.boxes, geometry), true.class_ids.astype(np.intp)
        if not any(name in self._class_of for group in OBJECTS.values() for name in group):
            raise EvaluationError(
                f"none of the model's classes ({', '.join(self._card.labels.names)[:200]}) is one of the drive's: its boxes "
                "cannot be evaluated"
            )
        known = [box for box in true if box.name in self._class_of]
        self.foreign += len(true) - len(known)
        values = [(self._class_of[box.name], box.x, box.y, box.x + box.width, box.y + box.height) for box in known]
        rows = np.array(values, np.float32).reshape(-1, 5)
        rows[:, 1:] = boxes.to_target(rows[:, 1:], geometry)
        clipped = np.concatenate(split_boxes(rows, self._card.height, self._card.width))
        return clipped[:, 1:], clipped[:, 0].astype(np.intp)


def in_input(found: Detections, geometry: Geometry) -> Detections:
    """Returns objects in pixels of the source of `geometry` in pixels of the input."""
    return Detections(boxes.to_target(found.boxes, geometry), found.class_ids, found.scores)


def class_ids_by_name(names: tuple[str, ...]) -> dict[str, int]:
    """Returns the model's class id for each name of a true box: the class of that name, or of its group in OBJECTS."""
    classes = {name: class_id for class_id, group in enumerate(names) for name in OBJECTS.get(group, ())}
    return classes | {name: class_id for class_id, name in enumerate(names)}
