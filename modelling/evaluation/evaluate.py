"""Evaluates a model of any task on a bag with true labels or boxes."""

from collections.abc import Generator, Iterator
from contextlib import closing
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
    LabelledImage,
    LabelledImages,
    TrueBoxes,
    prepared,
    truth_of,
)
from modelling.evaluation.class_map import ClassMap, TrueMasks, class_map
from modelling.evaluation.metrics import HEADLINE_SIZE, LOW_SCORE, Confusion, matchers_by_size, metrics_by_size
from rosbag_tools.drive.scene import PRESENCE
from rosbag_tools.reading.frames import BagSource
from shared.errors import UnknownNameError
from shared.imaging.frames import UnreadableFrame
from shared.imaging.geometry import UNSEEN, Geometry, Resize, plan, to_source
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.tasks.detection import objects
from shared.terminal_table import Table


def evaluate_model(
    model: Model, bag: Path, settings: EvaluationSettings
) -> "SegmentationEvaluation | DetectionEvaluation | ClassificationEvaluation":
    """Evaluates a model on a bag.

    Raises:
        SkylaneError: the bag cannot be read, or has no such camera with ground truth for such a model, or nothing in it can
            be compared.
    """
    if settings.map_file is not None and model.card.task != "segmentation":
        raise EvaluationError(
            f"--map is for the classes of a segmentation, and {model.card.name} is a {model.card.task}: leave it out"
        )
    match model.card.task:
        case "classification":
            return _evaluate_classification(model, bag, settings)
        case "tensors":
            raise EvaluationError(f"{model.card.name} gives raw tensors: a bag has no ground truth for them")
        case task if settings.truth is not None:
            raise EvaluationError(f"--truth is for a classifier, and {model.card.name} is a {task}: leave it out")
        case "detection":
            return _evaluate_detection(model, bag, settings)
        case _:
            return evaluate_segmentation(model, bag, settings)


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

    truth: TrueMasks
    confusion: Confusion  # Pixels of the compared classes.

    @property
    def classes(self) -> ClassMap:
        """The compared classes."""
        return self.truth.classes

    @property
    def mean_iou(self) -> float:
        """The mean intersection over union of the classes in the true labels except `none`; NaN without any."""
        return self.confusion.mean_iou(self.classes.names)

    accuracy = mean_iou

    @property
    def summary(self) -> str:
        """The results in one line."""
        note = self.truth.describe()
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
            "foreign_pixels": self.truth.foreign,
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
        SkylaneError: as `evaluate_model`.
    """
    images = LabelledImages(bag, settings.camera, frames=settings.frames)
    card, count = model.card, len(model.card.labels.names)
    truth = TrueMasks(class_map(card.labels.names, images.names, settings.map_file))
    compared = len(truth.classes.names)
    confusion = Confusion.empty(compared)
    for labelled, image, geometry in _evaluated(images, card, settings):
        mask = model.predict(image[np.newaxis])[0]
        if mask.max() >= count:
            raise EvaluationError(
                f"{card.name} predicts class {mask.max()}, but names only {count}: name all in labels"
            )
        predicted = truth.classes.of_network(to_source(mask, geometry, UNSEEN))
        true = truth.compared(labelled.truth)
        counted = (true < compared) & (predicted < compared)
        if not counted.all():
            true, predicted = true[counted], predicted[counted]
        confusion = confusion.with_masks(true, predicted)
    if not truth.classes.is_identity and not confusion.counts.any():
        raise EvaluationError(
            f"{bag}: none of its {truth.labelled:,} labelled pixels has a class to compare. {truth.describe()} Give another map "
            "with --map, or another bag"
        )
    return SegmentationEvaluation(*_subject(card, images), truth, confusion)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)


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


def _evaluate_detection(model: Model, bag: Path, settings: EvaluationSettings) -> DetectionEvaluation:
    """Compares a detector's boxes with the true ones of the same timestamp, in pixels of the model's input."""
    images = LabelledImages(bag, settings.camera, BOXES, settings.frames)
    card, manifest = model.card, model.manifest.with_score_threshold(LOW_SCORE)
    identity = plan(Resize.CROP, card.height, card.width, card.height, card.width)
    truth, matchers = TrueBoxes(card.labels.names), matchers_by_size(len(card.labels.names))
    for labelled, image, geometry in _evaluated(images, card, settings):
        found = objects(model.infer_one(image), identity, manifest)
        true = truth.in_input(labelled.truth, geometry)
        for matcher in matchers.values():
            matcher.add(found, *true)
    threshold = model.manifest.detection.score_threshold
    metrics = metrics_by_size(matchers, card.labels.names, threshold)
    return DetectionEvaluation(*_subject(card, images), truth.foreign.total(), threshold, metrics)


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


def _evaluate_classification(model: Model, bag: Path, settings: EvaluationSettings) -> ClassificationEvaluation:
    """Evaluates a classifier on the images of a camera, by default the first one.

    All frames have the class `settings.truth`, such as a weather. If that is not given, the model must have the labels
    PRESENCE: the answer to "is there a vehicle?" changes during a drive, and follows from the boxes.
    """
    names, truth = model.card.labels.names, settings.truth
    images: LabelledImages | _ImagesOfClass
    if truth is not None:
        if truth not in names:
            raise UnknownNameError("class", truth, names)
        images = _ImagesOfClass(bag, settings.camera, names.index(truth), settings.frames)
    elif names == PRESENCE:
        images = LabelledImages(bag, settings.camera, BOXES, settings.frames)
    else:
        raise EvaluationError(
            f"{model.card.name} classifies whole frames: give the class of the bag's frames, --truth {'|'.join(names)}"
        )
    confusion = Confusion.empty(len(names))
    for labelled, image, _ in _evaluated(images, model.card, settings):
        true = truth_of(labelled.truth, len(labelled.pixels)) if truth is None else labelled.truth
        answer = model.infer_one(image)["scores"].argmax()
        confusion = confusion.with_masks(np.array([true], np.uint8), np.array([answer], np.uint8))
    return ClassificationEvaluation(*_subject(model.card, images), truth, confusion)


class _ImagesOfClass:
    """The readable images of a camera of a bag that all have the same class, in the place of `LabelledImages`."""

    def __init__(self, path: Path, camera: str | None, class_id: int, frames: int | None) -> None:
        self.camera = self.sha256 = ""
        self.count = self.unmatched = 0
        self.total = frames
        self._path, self._class_id = path, class_id
        self._topics = () if camera is None else (camera,)

    def __iter__(self) -> Iterator[LabelledImage]:
        with closing(BagSource(self._path, topics=self._topics)) as source:
            self.camera = str(source.provenance["cameras"][0])  # type: ignore[index]  # The value is a list.
            for frame in source.frames():
                if frame.camera != self.camera:
                    continue
                if isinstance(frame, UnreadableFrame):
                    self.unmatched += 1
                    continue
                self.count += 1
                yield LabelledImage(frame.pixels, frame.layout, frame.stamp_ns, self._class_id)
                if self.count == self.total:
                    break
            self.sha256 = str(source.provenance["sha256"])
        if not self.count:
            raise EvaluationError(f"{self._path}: no image on {self.camera} can be read")


def _evaluated(
    images: LabelledImages | _ImagesOfClass, card: ModelCard, settings: EvaluationSettings
) -> Generator[tuple[LabelledImage, npt.NDArray[np.uint8], Geometry]]:
    """Yields each image, and what `prepared` returns for it; reports the progress."""
    for labelled in images:
        yield labelled, *prepared(labelled.pixels, labelled.layout, card)
        settings.on_frame(images.count, images.total)


def _subject(card: ModelCard, images: LabelledImages | _ImagesOfClass) -> tuple[ModelCard, str, str, int, int]:
    """Returns the fields of `BagEvaluation`."""
    return card, images.sha256, images.camera, images.count, images.unmatched
