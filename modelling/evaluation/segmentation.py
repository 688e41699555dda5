"""How well a model does on a bag with true labels."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.models.model import Model
from modelling.evaluation.confusion import Confusion
from modelling.evaluation.time_sync import Pairing
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError, suggestion
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame, Layout, Pixels, UnreadableFrame
from shared.imaging.geometry import Geometry, apply, plan, to_source
from shared.messages.model_card import ModelCard

UNLABELLED = "none"  # The class that is no class: counted as an error where predicted, but not in the mean.
LABELS = "/labels"

UNSEEN = 255  # What a crop cut off: the model never saw it, so it is not judged there.


class EvaluationError(SkylaneError):
    """A bag that no model can be judged by."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of a model on a bag."""

    card: ModelCard
    bag_sha256: str
    camera: str
    frames: int  # Judged.
    unmatched: int  # Pictures without labels of their stamp, or unreadable.
    foreign_pixels: int  # Whose true class the model does not have; not counted.
    confusion: Confusion

    @property
    def mean_iou(self) -> float:
        """The mean intersection over union of the classes in the true labels, other than `none`; NaN without any."""
        present = self.confusion.counts.sum(axis=1) > 0
        judged = [
            iou
            for name, iou, held in zip(
                self.card.labels.names, self.confusion.intersection_over_union(), present, strict=True
            )
            if held and name != UNLABELLED
        ]
        return float(np.mean(judged)) if judged else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Plain types; a figure that does not exist is null."""
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
    """What was judged on what, as every evaluation tells it."""
    return {
        "model": card.name,
        "version": card.version,
        "sha256": card.sha256,
        "trained": card.trained,
        "bag_sha256": bag_sha256,
        "camera": camera,
    }


def prepared(pixels: Pixels, layout: Layout, card: ModelCard, demosaic: str) -> tuple[npt.NDArray[np.uint8], Geometry]:
    """A picture as a model takes it: uint8 H×W×3 in the card's size and layout, and the geometry that was made.

    Raises:
        DemosaicError, GeometryError: the picture cannot be brought there.
    """
    height, width = pixels.shape[:2]
    geometry = plan(card.resize, height, width, card.height, card.width)
    return apply(to_colour(pixels, layout, card.layout, demosaic), geometry), geometry


def evaluate(
    model: Model,
    bag: Path,
    *,
    camera: str | None = None,
    frames: int | None = None,
    demosaic: str = "binning",
    on_frame: Callable[[int, int | None], None] = lambda _done, _of: None,
) -> Evaluation:
    """Run a model over a bag's pictures and compare with the true labels of the same stamp, at the pictures' own size.

    `camera`: an image topic; the first one that has labels beside it where none is given. `frames`: at most so many.
    `on_frame` is told how many are judged, of how many.

    Raises:
        SkylaneError: the bag cannot be read, has no such camera, or no labels beside it.
    """
    camera, truth, count = labelled_camera(bag, camera)
    total = count if frames is None else min(frames, count)
    judge = _Judge(model, demosaic)
    source = BagSource(bag, topics=[camera, truth])
    pairing: Pairing[Frame, Frame] = Pairing()
    try:
        for frame in source.frames():
            if isinstance(frame, UnreadableFrame):
                pairing.unmatched += frame.camera == camera
                continue
            offer = pairing.with_picture if frame.camera == camera else pairing.with_truth
            pair = offer(frame.stamp_ns, frame)
            if pair is not None:
                judge.add(*pair)
                on_frame(judge.frames, total)
            if judge.frames == frames:
                break
        else:
            pairing.end()
        sha256 = str(source.provenance["sha256"])
    finally:
        source.close()
    if not judge.frames:
        raise EvaluationError(f"{bag}: no picture on {camera} has labels of the same stamp on {truth}")
    return Evaluation(
        model.card, sha256, camera, judge.frames, pairing.unmatched, judge.foreign_pixels, judge.confusion
    )


class _Judge:
    """Counts, frame by frame, what the model took for what."""

    def __init__(self, model: Model, demosaic: str) -> None:
        self._model = model
        self._demosaic = demosaic
        self._classes = len(model.card.labels.names)
        self.confusion = Confusion.empty(self._classes)
        self.frames = 0
        self.foreign_pixels = 0

    def add(self, picture: Frame, truth: Frame) -> None:
        if truth.layout is not Layout.MONO8 or truth.pixels.shape != picture.pixels.shape[:2]:
            raise EvaluationError(
                f"labels on {truth.camera} are {truth.layout} of {truth.pixels.shape}, the picture is "
                f"{picture.pixels.shape[:2]}: labels must be mono8 of the picture's size"
            )
        image, geometry = prepared(picture.pixels, picture.layout, self._model.card, self._demosaic)
        mask = self._model.predict(image[np.newaxis])[0]
        if mask.max() >= self._classes:
            name = self._model.card.name
            raise EvaluationError(
                f"{name} answers class {mask.max()}, but names only {self._classes}: name all in labels"
            )
        predicted = to_source(mask, geometry, UNSEEN)
        true = truth.pixels.astype(np.uint8, copy=False)
        known = true < self._classes
        counted = known & (predicted < self._classes)
        self.foreign_pixels += int(known.size - np.count_nonzero(known))
        if counted.all():
            self.confusion = self.confusion.with_masks(true, predicted)
        else:
            self.confusion = self.confusion.with_masks(true[counted], predicted[counted])
        self.frames += 1


def labelled_camera(path: Path, camera: str | None, truth: str = LABELS) -> tuple[str, str, int]:
    """A camera (the first with truth beside it, where none is given), the topic of its truth, and how many pictures.

    `truth`: how that topic's name ends, beside the camera's.

    Raises:
        SkylaneError: the bag cannot be read, or has no such camera with truth beside it.
    """
    bag = Bag(path)
    try:
        counts = {topic.name: topic.count for topic in bag.topics}
        images = {topic.name for topic in bag.topics if topic.channel.has_images}
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
    for name, beside in labelled.items():
        if name.lstrip("/") == wanted.lstrip("/"):  # Bags spell their topics with and without the slash.
            return name, beside, counts[name]
    raise EvaluationError(f"{path} has no camera with {truth.strip('/')} on {wanted!r}{suggestion(wanted, labelled)}")


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 6)
