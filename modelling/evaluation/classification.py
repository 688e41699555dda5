"""Evaluates a classifier on a bag, whose frames all have the same known class or have true boxes.

A weather is the same in all frames of a drive. The answer to "is there a vehicle?" changes, and follows from the boxes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from modelling.evaluation.bag_images import (
    BOXES,
    EvaluationError,
    EvaluationSettings,
    LabelledImages,
    prepared,
    truth_of,
)
from modelling.evaluation.metrics import Confusion
from modelling.evaluation.segmentation import BagEvaluation
from rosbag_tools.drive.scene import PRESENCE
from rosbag_tools.reading.frames import BagSource
from shared.errors import UnknownNameError
from shared.imaging.frames import Layout, Pixels, UnreadableFrame
from shared.inference.model import Model
from shared.terminal_table import Table


@dataclass(frozen=True, slots=True)
class ClassificationEvaluation(BagEvaluation):
    """A classifier's results on a bag."""

    truth: str | None  # The class of all frames; None if the class of each frame follows from its boxes.
    confusion: Confusion  # Frames by true and predicted class.

    @property
    def accuracy(self) -> float:
        """The share of correctly classified frames."""
        return self.confusion.pixel_accuracy

    @property
    def taken_for(self) -> dict[str, int]:
        """The number of frames by predicted class."""
        return dict(zip(self.card.labels.names, self.confusion.counts.sum(axis=0).tolist(), strict=True))

    @property
    def summary(self) -> str:
        """The results in one line."""
        truth = "against the true boxes" if self.truth is None else f"for {self.truth}"
        return (
            f"accuracy {self.accuracy:.4f} {truth} · {self.frames} frames · {self.unmatched} unreadable{self.untrained}"
        )

    def table(self, title: str) -> Table:
        """Returns the number of frames by predicted class, and by true class if they differ in it."""
        names = self.card.labels.names
        table = Table(title=title)
        table.add_column("taken for")
        if self.truth is None:
            for name in names:
                table.add_column(f"of {name}", justify="right")
        table.add_column("frames", justify="right")
        for predicted, (name, total) in enumerate(self.taken_for.items()):
            by_truth = self.confusion.counts[:, predicted].tolist() if self.truth is None else ()
            table.add_row(Text(name), *map(str, by_truth), str(total))
        return table

    def to_json(self) -> dict[str, Any]:
        """Returns the results as plain types; an undefined number is None."""
        results: dict[str, Any] = {
            **self.subject(),
            "truth": self.truth,
            "frames": self.frames,
            "unreadable": self.unmatched,
            "accuracy": round(self.accuracy, 6),
            "taken_for": self.taken_for,
        }
        if self.truth is None:
            results |= {"classes": list(self.card.labels.names), "confusion": self.confusion.counts.tolist()}
        return results


def evaluate_classification(model: Model, bag: Path, settings: EvaluationSettings) -> ClassificationEvaluation:
    """Evaluates a classifier on the images of a camera, by default the first one.

    All frames have the class `settings.truth`. If that is not given, the model must have the labels PRESENCE, whose truth
    follows from the boxes.

    Raises:
        SkylaneError: the bag cannot be read, has no such camera, no readable image or no boxes, or the model has no such
            class.
    """
    names, truth = model.card.labels.names, settings.truth
    if truth is None and names == PRESENCE:
        return _evaluate_presence(model, bag, settings)
    if truth is None:
        raise EvaluationError(
            f"{model.card.name} classifies whole frames: give the class of the bag's frames, --truth {'|'.join(names)}"
        )
    if truth not in names:
        raise UnknownNameError("class", truth, names)
    counter = _AnswerCounter(model, settings)
    source = BagSource(bag, topics=() if settings.camera is None else (settings.camera,))
    try:
        chosen = str(source.provenance["cameras"][0])  # type: ignore[index]  # The value is a list.
        unreadable = 0
        for frame in source.frames():
            if frame.camera != chosen:
                continue
            if isinstance(frame, UnreadableFrame):
                unreadable += 1
                continue
            counter.add(frame.pixels, frame.layout, names.index(truth), settings.frames)
            if counter.frames == settings.frames:
                break
        sha256 = str(source.provenance["sha256"])
    finally:
        source.close()
    if not counter.frames:
        raise EvaluationError(f"{bag}: no image on {chosen} can be read")
    return ClassificationEvaluation(model.card, sha256, chosen, counter.frames, unreadable, truth, counter.confusion)


def _evaluate_presence(model: Model, bag: Path, settings: EvaluationSettings) -> ClassificationEvaluation:
    images = LabelledImages(bag, settings.camera, BOXES, settings.frames)
    counter = _AnswerCounter(model, settings)
    for image in images:
        counter.add(image.pixels, image.layout, truth_of(image.truth, len(image.pixels)), images.total)
    return ClassificationEvaluation(
        model.card, images.sha256, images.camera, counter.frames, images.unmatched, None, counter.confusion
    )


class _AnswerCounter:
    """Runs the model on images and counts its answers by the true class."""

    def __init__(self, model: Model, settings: EvaluationSettings) -> None:
        self._model = model
        self._settings = settings
        self.confusion = Confusion.empty(len(model.card.labels.names))
        self.frames = 0

    def add(self, pixels: Pixels, layout: Layout, true: int, total: int | None) -> None:
        image, _ = prepared(pixels, layout, self._model.card)
        answer = self._model.infer(image[np.newaxis])["scores"].argmax(axis=1).astype(np.uint8)
        self.confusion = self.confusion.with_masks(np.array([true], np.uint8), answer)
        self.frames += 1
        self._settings.on_frame(self.frames, total)
