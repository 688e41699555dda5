"""Evaluates a classifier on a bag whose frames all have the same known class, such as a drive's weather."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloud.models.model import Model
from modelling.evaluation.segmentation import EvaluationError, EvaluationSettings, prepared, subject
from rosbag_tools.reading.frames import BagSource
from shared.errors import UnknownNameError
from shared.imaging.frames import UnreadableFrame
from shared.messages.model_card import ModelCard
from shared.terminal_table import Table


@dataclass(frozen=True, slots=True)
class ClassificationEvaluation:
    """A classifier's results on a bag."""

    card: ModelCard
    bag_sha256: str
    camera: str
    truth: str
    unreadable: int  # Images that could not be evaluated.
    taken_for: tuple[int, ...]  # The number of frames by predicted class.

    @property
    def frames(self) -> int:
        """The number of evaluated frames."""
        return sum(self.taken_for)

    @property
    def accuracy(self) -> float:
        """The share of correctly classified frames."""
        return self.taken_for[self.card.labels.names.index(self.truth)] / self.frames

    @property
    def summary(self) -> str:
        """The results in one line."""
        untrained = "" if self.card.trained else " (untrained weights)"
        return (
            f"accuracy {self.accuracy:.4f} for {self.truth} · {self.frames} frames · "
            f"{self.unreadable} unreadable{untrained}"
        )

    def table(self, title: str) -> Table:
        """Returns the number of frames by predicted class."""
        table = Table(title=title)
        table.add_column("taken for")
        table.add_column("frames", justify="right")
        for name, count in zip(self.card.labels.names, self.taken_for, strict=True):
            table.add_row(name, str(count))
        return table

    def to_json(self) -> dict[str, Any]:
        """Returns the results as plain types."""
        return {
            **subject(self.card, self.bag_sha256, self.camera),
            "truth": self.truth,
            "frames": self.frames,
            "unreadable": self.unreadable,
            "accuracy": round(self.accuracy, 6),
            "taken_for": dict(zip(self.card.labels.names, self.taken_for, strict=True)),
        }


def evaluate_classification(model: Model, bag: Path, settings: EvaluationSettings) -> ClassificationEvaluation:
    """Evaluates a classifier on the images of a camera, by default the first one, all of which have the class `truth`.

    Raises:
        SkylaneError: the bag cannot be read, has no such camera or no readable image, or the model has no such class.
    """
    names, truth = model.card.labels.names, settings.truth
    if truth is None:
        raise EvaluationError(
            f"{model.card.name} classifies whole frames: give the class of the bag's frames, --truth {'|'.join(names)}"
        )
    if truth not in names:
        raise UnknownNameError("class", truth, names)
    source = BagSource(bag, topics=() if settings.camera is None else (settings.camera,))
    try:
        chosen = str(source.provenance["cameras"][0])  # type: ignore[index]  # The value is a list.
        predictions = np.zeros(len(names), np.int64)
        unreadable = 0
        for frame in source.frames():
            if frame.camera != chosen:
                continue
            if isinstance(frame, UnreadableFrame):
                unreadable += 1
                continue
            image, _ = prepared(frame.pixels, frame.layout, model.card, settings.demosaic)
            predictions[int(model.infer(image[np.newaxis])["scores"][0].argmax())] += 1
            settings.on_frame(int(predictions.sum()), settings.frames)
            if predictions.sum() == settings.frames:
                break
        sha256 = str(source.provenance["sha256"])
    finally:
        source.close()
    if not predictions.any():
        raise EvaluationError(f"{bag}: no image on {chosen} can be read")
    return ClassificationEvaluation(model.card, sha256, chosen, truth, unreadable, tuple(predictions.tolist()))
