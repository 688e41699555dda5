"""Evaluates a segmentation model on a bag with true labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from modelling.evaluation.bag_images import (
    EvaluationError,
    EvaluationSettings,
    LabelledImages,
    prepared,
)
from modelling.evaluation.class_map import ClassMap, class_map
from modelling.evaluation.metrics import Confusion
from shared.imaging.geometry import UNSEEN, to_source
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.terminal_table import Table


@dataclass(frozen=True, slots=True)
class BagEvaluation:
    """A model's results on a bag."""

    card: ModelCard
    bag_sha256: str
    camera: str
    frames: int  # Evaluated frames.
    unmatched: int  # Images that could not be evaluated: unreadable, or without a truth of the same timestamp.

    @property
    def untrained(self) -> str:
        """A remark on random weights; empty for a trained model."""
        return "" if self.card.trained else " (untrained weights)"

    def subject(self) -> dict[str, Any]:
        """Returns the model and the data of the evaluation, which are part of its JSON."""
        return {
            "model": self.card.name,
            "version": self.card.version,
            "sha256": self.card.sha256,
            "trained": self.card.trained,
            "bag_sha256": self.bag_sha256,
            "camera": self.camera,
        }


@dataclass(frozen=True, slots=True)
class SegmentationEvaluation(BagEvaluation):
    """A segmentation model's results on a bag."""

    classes: ClassMap
    foreign_pixels: int  # Pixels without a class, or whose true class is not one of the model's; not evaluated.
    labelled_pixels: int  # Pixels with a true class.
    ignored_pixels: int  # Those of them whose class is not one of the model's.
    confusion: Confusion  # Of the compared classes.

    @property
    def mean_iou(self) -> float:
        """The mean intersection over union of the classes in the true labels except `none`; NaN without any."""
        return self.confusion.mean_iou(self.classes.names)

    accuracy = mean_iou

    @property
    def summary(self) -> str:
        """The results in one line."""
        note = self.classes.describe(self.ignored_pixels / max(1, self.labelled_pixels))
        return (
            f"mean IoU {self.mean_iou:.4f} over the classes except `none` · pixel accuracy "
            f"{self.confusion.pixel_accuracy:.4f} · {self.frames} frames · {self.unmatched} without labels{self.untrained}"
            + (f"\n{note}" if note else "")
        )

    def table(self, title: str) -> Table:
        """Returns the predicted classes (columns) of each true class (row) in percent."""
        names, counts = self.classes.names, self.confusion.counts
        present = [i for i in range(len(names)) if counts[i].any() or counts[:, i].any()]
        table = Table(title=title, caption="true class by row, predicted class by column, %")
        table.add_column("true class")
        table.add_column("IoU", justify="right")
        for i in present:
            table.add_column(str(i), justify="right", no_wrap=True)
        iou = self.confusion.intersection_over_union()
        for i in present:
            shares = 100 * counts[i] / max(1, counts[i].sum())
            percents = (f"{shares[j]:.0f}" if counts[i, j] else "·" for j in present)
            table.add_row(Text(f"{i:2} {names[i]}"), f"{iou[i]:.3f}", *percents)
        return table

    def to_json(self) -> dict[str, Any]:
        """Returns the results as plain types; an undefined number is None."""
        by_class = zip(self.classes.names, self.confusion.intersection_over_union().tolist(), strict=True)
        return {
            **self.subject(),
            **self.classes.to_json(),
            "frames": self.frames,
            "unmatched": self.unmatched,
            "foreign_pixels": self.foreign_pixels,
            "mean_iou": _number(self.mean_iou),
            "pixel_accuracy": _number(self.confusion.pixel_accuracy),
            "iou": {name: _number(iou) for name, iou in by_class},
            "confusion": self.confusion.counts.tolist(),
        }


def evaluate_segmentation(
    model: Model,
    bag: Path,
    settings: EvaluationSettings = EvaluationSettings(),  # noqa: B008 - frozen.
) -> SegmentationEvaluation:
    """Compares a model's masks with the true labels of the same timestamp, at the camera's image size.

    Raises:
        SkylaneError: the bag cannot be read, or has no such camera with labels, or nothing in them can be compared.
    """
    images = LabelledImages(bag, settings.camera, frames=settings.frames)
    card, count = model.card, len(model.card.labels.names)
    classes = class_map(card.labels.names, images.names, settings.map_file)
    compared = len(classes.names)
    confusion = Confusion.empty(compared)
    frames = foreign_pixels = labelled_pixels = ignored_pixels = 0
    for frames, labelled in enumerate(images, start=1):
        image, geometry = prepared(labelled.pixels, labelled.layout, card)
        mask = model.predict(image[np.newaxis])[0]
        if mask.max() >= count:
            raise EvaluationError(
                f"{card.name} predicts class {mask.max()}, but names only {count}: name all in labels"
            )
        predicted = classes.of_network(to_source(mask, geometry, UNSEEN))
        labels = labelled.truth.astype(np.uint8, copy=False)
        true = classes.of_truth(labels)
        known = true < compared
        counted = known & (predicted < compared)
        foreign_pixels += int(known.size - np.count_nonzero(known))
        labelled_pixels += int(np.count_nonzero(labels != UNSEEN))
        ignored_pixels += int(np.count_nonzero(~known & (labels != UNSEEN)))
        if not counted.all():
            true, predicted = true[counted], predicted[counted]
        confusion = confusion.with_masks(true, predicted)
        settings.on_frame(frames, images.total)
    if not classes.is_identity and not confusion.counts.any():
        raise EvaluationError(
            f"{bag}: none of its {labelled_pixels:,} labelled pixels has a class to compare. "
            f"{classes.describe(ignored_pixels / max(1, labelled_pixels))} Give another map with --map, or another bag"
        )
    return SegmentationEvaluation(
        card,
        images.sha256,
        images.camera,
        frames,
        images.unmatched,
        classes,
        foreign_pixels,
        labelled_pixels,
        ignored_pixels,
        confusion,
    )


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)
