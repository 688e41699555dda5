"""Replays labelled bags: runs the reference model and the local model once on every frame."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from modelling.evaluation.segmentation import EvaluationError, images_with_labels, labelled_camera, prepared
from modelling.evaluation.true_boxes import BOXES, TimestampMatcher, images_with_boxes, truth_of
from modelling.recipes import PRESENCE
from modelling.reuse.calibration import CalibrationSamples
from modelling.reuse.scoring import FrameOutputs, Scorer, scorer_for
from modelling.reuse.simulation import ReplayedFrame
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.ros_types import read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource, ImageDecoder
from rosbag_tools.records import Message
from shared.imaging.frames import Frame, Layout, Pixels
from shared.imaging.geometry import Geometry
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.reuse.gate import small_grey
from shared.task import CONFIDENCE_HEAD, task_named

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """The selection of frames to replay."""

    frames: int | None = None  # The largest number of each bag; None for all.
    demosaic: str = "binning"  # A key of `shared.imaging.bayer.DEMOSAIC_METHODS`.
    on_frame: Callable[[int, int], None] = lambda _done, _total: None  # Called after each frame.


@dataclass(slots=True)
class Replay:
    """All that the simulation needs of the frames of some drives."""

    scorer: Scorer
    drives: list[str] = field(default_factory=list)  # The names of the bags.
    frames: list[ReplayedFrame] = field(default_factory=list)
    truths: list[Any] = field(default_factory=list)  # One for each frame, as the scorer takes them.
    reference_answers: list[Any] = field(default_factory=list)
    local_answers: list[Any] = field(default_factory=list)  # Empty without a local model.
    local_outputs: list[FrameOutputs] = field(default_factory=list)  # The outputs that the confidence needs.
    samples: list[CalibrationSamples] = field(default_factory=list)
    reduced_ms: list[float] = field(default_factory=list)  # Time of making the small image.

    def only(self, drive: str) -> "Replay":
        """Returns the frames of one drive."""
        of_drive = [index for index, frame in enumerate(self.frames) if frame.drive == drive]
        lists = ("frames", "truths", "reference_answers", "local_answers", "local_outputs", "samples", "reduced_ms")
        values = {name: getattr(self, name) for name in lists}
        chosen = {name: [each[index] for index in of_drive] for name, each in values.items() if each}
        return Replay(self.scorer, [drive], **chosen)

    def samples_by_drive(self) -> list[CalibrationSamples]:
        """Returns the samples that calibrate the local model, by drive."""
        return [
            CalibrationSamples.merged(
                [samples for frame, samples in zip(self.frames, self.samples, strict=True) if frame.drive == drive]
            )
            for drive in self.drives
        ]

    def set_confidences(self, local: Model, temperature: float) -> None:
        """Computes the confidence of each local answer with a temperature."""
        task = task_named(local.card.task)
        self.frames = [
            replace(frame, confidence=task.confidence(outputs, local.manifest, temperature))
            for frame, outputs in zip(self.frames, self.local_outputs, strict=True)
        ]


def replay(bags: Sequence[Path], reference: Model, local: Model | None, settings: ReplaySettings) -> Replay:
    """Runs both models on the frames of bags that have a ground truth for them.

    Raises:
        SkylaneError: a bag cannot be read or has no such truth, or the local model has another task or other labels.
    """
    _check(reference.card, local)
    names = [bag.stem for bag in bags]
    if len(set(names)) < len(names):
        raise EvaluationError("two of the bags have the same name: give each bag once, and rename the others")
    counts = [_frame_count(bag, reference.card, settings) for bag in bags]
    replayed = Replay(scorer_for(reference.card))
    runner = _Runner(replayed, reference, local, settings.demosaic)
    for name, bag, count in zip(names, bags, counts, strict=True):
        replayed.drives.append(name)
        before = len(replayed.frames)
        for image in _labelled_images(bag, reference.card):
            runner.add(name, image)
            settings.on_frame(len(replayed.frames), sum(counts))
            if len(replayed.frames) - before == count:
                break
        if len(replayed.frames) == before:
            raise EvaluationError(f"{bag}: no image has a truth of the same timestamp")
    return replayed


class _LabelledImage(NamedTuple):
    pixels: Pixels
    layout: Layout
    stamp_ns: int
    truth: Any  # True labels H×W, true boxes, or the true class.


class _Runner:
    """Runs both models on images and adds what they answer to a replay."""

    def __init__(self, replayed: Replay, reference: Model, local: Model | None, demosaic: str) -> None:
        self._replay = replayed
        self._reference = reference
        self._local = local
        self._demosaic = demosaic

    def add(self, drive: str, image: _LabelledImage) -> None:
        replayed, scorer, card = self._replay, self._replay.scorer, self._reference.card
        prepared_image, geometry = prepared(image.pixels, image.layout, card, self._demosaic)
        outputs = _first(self._reference, prepared_image)
        form = (*image.pixels.shape[:2], str(image.layout))
        start_ns = perf_counter_ns()
        small = small_grey(prepared_image, card.layout)
        replayed.reduced_ms.append((perf_counter_ns() - start_ns) / _NS_PER_MS)
        replayed.frames.append(ReplayedFrame(drive, form, small, image.stamp_ns))
        replayed.truths.append(scorer.true_answer(image.truth, geometry))
        replayed.reference_answers.append(scorer.answer(outputs, self._reference.manifest, geometry, geometry))
        if self._local is not None:
            self._add_local(self._local, image, geometry)

    def _add_local(self, local: Model, image: _LabelledImage, geometry: Geometry) -> None:
        replayed, scorer = self._replay, self._replay.scorer
        same_view = replace(local.card, resize=self._reference.card.resize)
        prepared_image, own = prepared(image.pixels, image.layout, same_view, self._demosaic)
        outputs = _first(local, prepared_image)
        replayed.local_answers.append(scorer.answer(outputs, local.manifest, geometry, own))
        replayed.local_outputs.append(scorer.confidence_outputs(outputs, local.manifest))
        replayed.samples.append(scorer.samples(outputs, image.truth, local.manifest, geometry, own))


def _first(model: Model, image: Any) -> FrameOutputs:
    return {name: values[0] for name, values in model.infer(image[np.newaxis]).items()}


def _check(reference: ModelCard, local: Model | None) -> None:
    if reference.task == "classification" and reference.labels.names != PRESENCE:
        raise EvaluationError(
            f"{reference.name} does not answer whether there is a vehicle, and a bag has no truth for its classes frame by "
            f"frame: choose a model with the labels {', '.join(PRESENCE)}"
        )
    if local is None:
        return
    for what, ours, theirs in (
        ("task", reference.task, local.card.task),
        ("labels", ", ".join(reference.labels.names), ", ".join(local.card.labels.names)),
    ):
        if ours != theirs:
            raise EvaluationError(
                f"the {what} of the local model {local.card.name} ({theirs}) must be those of {reference.name} ({ours}): "
                f"choose another local model"
            )
    if local.card.task == "segmentation" and CONFIDENCE_HEAD not in local.manifest.heads:
        raise EvaluationError(
            f"{local.card.name} does not name an output of scores, so its masks have no confidence: add the key confidence "
            f"to its model.yaml, or choose another local model"
        )


def _suffix(card: ModelCard) -> str | None:
    return BOXES if card.task in ("classification", "detection") else None


def _camera(bag: Path, card: ModelCard) -> tuple[str, str, int]:
    suffix = _suffix(card)
    return labelled_camera(bag, None) if suffix is None else labelled_camera(bag, None, suffix)


def _frame_count(bag: Path, card: ModelCard, settings: ReplaySettings) -> int:
    count = _camera(bag, card)[2]
    return min(count, settings.frames or count)


def _labelled_images(bag: Path, card: ModelCard) -> Iterator[_LabelledImage]:
    camera, truth, _ = _camera(bag, card)
    if _suffix(card) is None:
        source = BagSource(bag, topics=[camera, truth])
        labels: TimestampMatcher[Frame, Frame] = TimestampMatcher()
        try:
            for frame, true in images_with_labels(source, camera, labels):
                yield _LabelledImage(frame.pixels, frame.layout, frame.stamp_ns, true.pixels)
        finally:
            source.close()
        return
    matcher: TimestampMatcher[Message, list[Box]] = TimestampMatcher()
    with Bag(bag) as opened:
        decoder = ImageDecoder(opened, opened.find([camera]))
        for message, boxes in images_with_boxes(opened, camera, truth, matcher):
            pixels, layout = decoder.decode(message)
            answer = truth_of(boxes, pixels.shape[0]) if card.task == "classification" else boxes
            yield _LabelledImage(pixels, layout, read_stamp(message), answer)
