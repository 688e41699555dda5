"""Evaluates a segmentation model on a bag with true labels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.text import Text

from modelling.evaluation.confusion import Confusion
from modelling.evaluation.true_boxes import TimestampMatcher
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource, depth_topics
from shared.errors import SkylaneError, suggestion
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout, Pixels, UnreadableFrame
from shared.imaging.geometry import Geometry, apply, plan, to_source
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.terminal_table import Table

LABELS = "/labels"  # The suffix of a topic with true labels.
UNSEEN = 255  # The class id of pixels outside of the model's crop, which are not evaluated.


class EvaluationError(SkylaneError):
    """A model cannot be evaluated on a bag."""


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """What to evaluate a model on."""

    truth: str | None = None  # The class of all frames, for a classifier.
    camera: str | None = None  # The image topic; by default the first one with ground truth.
    frames: int | None = None  # The largest number of frames; None for all.
    demosaic: str = "binning"  # A key of `shared.imaging.bayer.DEMOSAIC_METHODS`.
    on_frame: Callable[[int, int | None], None] = lambda _done, _total: None  # Called after each evaluated frame.


@dataclass(frozen=True, slots=True)
class SegmentationEvaluation:
    """A segmentation model's results on a bag."""

    card: ModelCard
    bag_sha256: str
    camera: str
    frames: int  # Evaluated frames.
    unmatched: int  # Images without labels of the same timestamp, or unreadable.
    foreign_pixels: int  # Pixels whose true class is not one of the model's; not evaluated.
    confusion: Confusion

    @property
    def mean_iou(self) -> float:
        """The mean intersection over union of the classes in the true labels except `none`; NaN without any."""
        return self.confusion.mean_iou(self.card.labels.names)

    accuracy = mean_iou

    @property
    def summary(self) -> str:
        """The results in one line."""
        untrained = "" if self.card.trained else " (untrained weights)"
        return (
            f"mean IoU {self.mean_iou:.4f} over the classes except `none` · pixel accuracy "
            f"{self.confusion.pixel_accuracy:.4f} · {self.frames} frames · {self.unmatched} without labels{untrained}"
        )

    def table(self, title: str) -> Table:
        """Returns the predicted classes (columns) of each true class (row) in percent."""
        names, counts = self.card.labels.names, self.confusion.counts
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
        by_class = zip(self.card.labels.names, self.confusion.intersection_over_union().tolist(), strict=True)
        return {
            **subject(self.card, self.bag_sha256, self.camera),
            "frames": self.frames,
            "unmatched": self.unmatched,
            "foreign_pixels": self.foreign_pixels,
            "mean_iou": _number(self.mean_iou),
            "pixel_accuracy": _number(self.confusion.pixel_accuracy),
            "iou": {name: _number(iou) for name, iou in by_class},
            "confusion": self.confusion.counts.tolist(),
        }


def subject(card: ModelCard, bag_sha256: str, camera: str) -> dict[str, Any]:
    """Returns the model and the data of an evaluation, which are part of every evaluation's JSON."""
    return {
        "model": card.name,
        "version": card.version,
        "sha256": card.sha256,
        "trained": card.trained,
        "bag_sha256": bag_sha256,
        "camera": camera,
    }


def prepared(pixels: Pixels, layout: Layout, card: ModelCard, demosaic: str) -> tuple[npt.NDArray[np.uint8], Geometry]:
    """Returns an image as uint8 H×W×3 in a model's size and channel order, and the applied geometry.

    Raises:
        SkylaneError, GeometryError: the image cannot be converted.
    """
    height, width = pixels.shape[:2]
    geometry = plan(card.resize, height, width, card.height, card.width)
    return apply(to_colour(pixels, layout, card.layout, demosaic), geometry), geometry


def evaluate_segmentation(
    model: Model,
    bag: Path,
    settings: EvaluationSettings = EvaluationSettings(),
) -> SegmentationEvaluation:
    """Compares a model's masks with the true labels of the same timestamp, at the camera's image size.

    Raises:
        SkylaneError: the bag cannot be read, or has no such camera with labels.
    """
    camera, truth, count = labelled_camera(bag, settings.camera)
    total = count if settings.frames is None else min(settings.frames, count)
    counter = _MaskCounter(model, settings.demosaic)
    source = BagSource(bag, topics=[camera, truth])
    matcher: TimestampMatcher[Frame, Frame] = TimestampMatcher()
    try:
        for image, true in images_with_labels(source, camera, matcher):
            counter.add(image, true)
            settings.on_frame(counter.frames, total)
            if counter.frames == settings.frames:
                break
        sha256 = str(source.provenance["sha256"])
    finally:
        source.close()
    if not counter.frames:
        raise EvaluationError(f"{bag}: no image on {camera} has labels of the same timestamp on {truth}")
    return SegmentationEvaluation(
        model.card, sha256, camera, counter.frames, matcher.unmatched, counter.foreign_pixels, counter.confusion
    )


def images_with_labels(
    source: BagSource, camera: str, matcher: TimestampMatcher[Frame, Frame]
) -> Iterator[tuple[Frame, Frame]]:
    """Yields the images on the topic `camera` with the true labels of the same timestamp, the source's other topic.

    The matcher counts the images without labels, and those that cannot be read.

    Raises:
        EvaluationError: labels are not mono8 of the image's size.
    """
    for frame in source.frames():
        if isinstance(frame, UnreadableFrame):
            matcher.unmatched += frame.camera == camera
            continue
        add = matcher.add_image if frame.camera == camera else matcher.add_truth
        pair = add(frame.stamp_ns, frame)
        if pair is None:
            continue
        image, truth = pair
        if truth.layout is not Layout.MONO8 or truth.pixels.shape != image.pixels.shape[:2]:
            raise EvaluationError(
                f"labels on {truth.camera} are {truth.layout} of {truth.pixels.shape}, the image is "
                f"{image.pixels.shape[:2]}: labels must be mono8 of the image's size"
            )
        yield pair
    matcher.end()


class _MaskCounter:
    """Runs the model on images and counts the predicted class of each pixel by its true class."""

    def __init__(self, model: Model, demosaic: str) -> None:
        self._model = model
        self._demosaic = demosaic
        self._classes = len(model.card.labels.names)
        self.confusion = Confusion.empty(self._classes)
        self.frames = 0
        self.foreign_pixels = 0

    def add(self, frame: Frame, truth: Frame) -> None:
        image, geometry = prepared(frame.pixels, frame.layout, self._model.card, self._demosaic)
        mask = self._model.predict(image[np.newaxis])[0]
        if mask.max() >= self._classes:
            name = self._model.card.name
            raise EvaluationError(
                f"{name} predicts class {mask.max()}, but names only {self._classes}: name all in labels"
            )
        predicted = to_source(mask, geometry, UNSEEN)
        true = truth.pixels.astype(np.uint8, copy=False)
        known = true < self._classes
        counted = known & (predicted < self._classes)
        self.foreign_pixels += int(known.size - np.count_nonzero(known))
        if not counted.all():
            true, predicted = true[counted], predicted[counted]
        self.confusion = self.confusion.with_masks(true, predicted)
        self.frames += 1


def labelled_camera(path: Path, camera: str | None, truth: str = LABELS) -> tuple[str, str, int]:
    """Finds a camera with ground truth in a bag; returns its topic, the truth's topic, and the number of images.

    Args:
        path: The bag.
        camera: The image topic; the first one with ground truth by default.
        truth: The suffix of the truth's topic, which has the same prefix as the camera's.

    Raises:
        SkylaneError: the bag cannot be read, or has no such camera with ground truth.
    """
    bag = Bag(path)
    try:
        counts = {topic.name: topic.count for topic in bag.topics}
        images = {topic.name for topic in bag.topics if topic.channel.has_images}
        if camera is None:
            images -= depth_topics(bag).keys()
    finally:
        bag.close()
    by_folder = {name.removesuffix(truth): name for name in counts if name.endswith(truth)}
    labelled = {
        name: by_folder[name.rpartition("/")[0]]
        for name in counts
        if name in images and name.rpartition("/")[0] in by_folder and not name.endswith((truth, LABELS))
    }
    if not labelled:
        raise EvaluationError(
            f"{path} holds no true {truth.strip('/')} (a topic …{truth}): `skylane bag make` writes them"
        )
    wanted = next(iter(labelled)) if camera is None else camera
    for name, truth_topic in labelled.items():
        if name.lstrip("/") == wanted.lstrip("/"):  # Topics have a leading slash in some bags only.
            return name, truth_topic, counts[name]
    raise EvaluationError(f"{path} has no camera with {truth.strip('/')} on {wanted!r}{suggestion(wanted, labelled)}")


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)
