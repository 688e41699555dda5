"""Evaluates a detector on a bag with true boxes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.text import Text

from modelling.evaluation.average_precision import (
    HEADLINE_SIZE,
    BoxMatcher,
    matchers_by_size,
    metrics_by_size,
    with_low_threshold,
)
from modelling.evaluation.segmentation import EvaluationError, EvaluationSettings, labelled_camera, prepared, subject
from modelling.evaluation.true_boxes import BOXES, TimestampMatcher, images_with_boxes, split_boxes
from modelling.recipes import OBJECTS
from rosbag_tools.drive.scene import Box
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import ImageDecoder
from rosbag_tools.records import Message
from shared.imaging import boxes
from shared.imaging.frames import Layout, Pixels
from shared.imaging.geometry import Geometry, Resize, plan
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.tasks.detection import objects
from shared.terminal_table import Table


@dataclass(frozen=True, slots=True)
class DetectionEvaluation:
    """A detector's results on a bag."""

    card: ModelCard
    bag_sha256: str
    camera: str
    frames: int  # Evaluated frames.
    unmatched: int  # Images without boxes of the same timestamp, or unreadable.
    foreign_boxes: int  # True boxes whose class the model does not have; not evaluated.
    score_threshold: float
    metrics: dict[str, Any]  # See `modelling.evaluation.average_precision.metrics_by_size`.

    @property
    def accuracy(self) -> float | None:
        """The mean average precision over the classes, for objects from `HEADLINE_SIZE` on; None without any."""
        values = [sizes[f"from_{HEADLINE_SIZE:g}_px"]["average_precision"] for sizes in self.metrics.values()]
        defined = [each for each in values if each is not None]
        return sum(defined) / len(defined) if defined else None

    @property
    def summary(self) -> str:
        """The results in one line."""
        untrained = "" if self.card.trained else " (untrained weights)"
        return (
            f"boxes match from an IoU of 0.5; recall and precision at a score of {self.score_threshold:g} · "
            f"{self.frames} frames · {self.unmatched} without boxes{untrained}"
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
            **subject(self.card, self.bag_sha256, self.camera),
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
    camera, truth, count = labelled_camera(bag, settings.camera, BOXES)
    counter = _BoxCounter(model, settings.demosaic)
    matcher: TimestampMatcher[Message, list[Box]] = TimestampMatcher()
    with Bag(bag) as opened:
        decoder = ImageDecoder(opened, opened.find([camera]))
        for message, true in images_with_boxes(opened, camera, truth, matcher):
            counter.add(*decoder.decode(message), true)
            settings.on_frame(counter.frames, min(count, settings.frames or count))
            if counter.frames == settings.frames:
                break
        sha256 = opened.sha256
    if not counter.frames:
        raise EvaluationError(f"{bag}: no image on {camera} has boxes of the same timestamp on {truth}")
    threshold = model.manifest.detection.score_threshold
    metrics = metrics_by_size(counter.matchers, model.card.labels.names, threshold)
    return DetectionEvaluation(
        model.card, sha256, camera, counter.frames, matcher.unmatched, counter.foreign_boxes, threshold, metrics
    )


class _BoxCounter:
    """Runs the detector on images and matches its boxes with the true ones."""

    def __init__(self, model: Model, demosaic: str) -> None:
        self._model = model
        self._demosaic = demosaic
        self._manifest = with_low_threshold(model.manifest)
        card = model.card
        self._identity = plan(Resize.CROP, card.height, card.width, card.height, card.width)
        self._truth = TrueBoxes(card)
        self.matchers: dict[float, BoxMatcher] = matchers_by_size(len(card.labels.names))
        self.frames = 0

    @property
    def foreign_boxes(self) -> int:
        """The number of true boxes whose class the detector does not have."""
        return self._truth.foreign

    def add(self, pixels: Pixels, layout: Layout, true: list[Box]) -> None:
        image, geometry = prepared(pixels, layout, self._model.card, self._demosaic)
        outputs = self._model.infer(image[np.newaxis])
        found = objects({head: values[0] for head, values in outputs.items()}, self._identity, self._manifest)
        true_boxes, class_ids = self._truth.in_input(true, geometry)
        for matcher in self.matchers.values():
            matcher.add(found, true_boxes, class_ids)
        self.frames += 1


class TrueBoxes:
    """Converts the true boxes of a frame to a detector's classes and input, and counts those of other classes."""

    def __init__(self, card: ModelCard) -> None:
        """Raises an EvaluationError if the detector has none of the drive's classes."""
        self._card = card
        names = card.labels.names
        self._class_of = class_ids_by_name(names)
        if not any(name in self._class_of for group in OBJECTS.values() for name in group):
            raise EvaluationError(
                f"none of the model's classes ({', '.join(names)[:200]}) is one of the drive's: its boxes cannot be evaluated"
            )
        self.foreign = 0

    def in_input(self, true: Sequence[Box], geometry: Geometry) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.intp]]:
        """Returns the boxes N×4 in pixels of the input, clipped to it, and their class ids."""
        known = [box for box in true if box.name in self._class_of]
        self.foreign += len(true) - len(known)
        values = [(self._class_of[box.name], box.x, box.y, box.x + box.width, box.y + box.height) for box in known]
        rows = np.array(values, np.float32).reshape(-1, 5)
        rows[:, 1:] = boxes.to_target(rows[:, 1:], geometry)
        clipped = np.concatenate(split_boxes(rows, self._card.height, self._card.width))
        return clipped[:, 1:], clipped[:, 0].astype(np.intp)


def class_ids_by_name(names: tuple[str, ...]) -> dict[str, int]:
    """Returns the model's class id for each name of a true box: the class of that name, or of its group in OBJECTS."""
    classes = {name: class_id for class_id, group in enumerate(names) for name in OBJECTS.get(group, ())}
    return classes | {name: class_id for class_id, name in enumerate(names)}
