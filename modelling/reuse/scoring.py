"""Scores presented answers against the truth in a bag, task by task.

The result of scoring one frame is an array of counts. Their sum over any set of frames gives the accuracy on these frames,
which makes it cheap to compare thousands of thresholds.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from modelling.evaluation.bag_images import EvaluationError, TrueBoxes, in_input
from modelling.evaluation.class_map import ClassMap
from modelling.evaluation.metrics import (
    HEADLINE_SIZE,
    LOW_SCORE,
    counted_classes,
    defined_mean,
    matched_boxes,
    mean_iou,
    precision_area,
    tallies,
)
from modelling.reuse.calibration import CalibrationSamples
from shared.imaging.frames import Pixels
from shared.imaging.geometry import UNSEEN, Geometry, to_source
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.results import Detections
from shared.models.manifest import Manifest
from shared.task import CONFIDENCE_HEAD, log_odds, log_probabilities
from shared.tasks.detection import LOWEST_SCORE, objects

Counts = npt.NDArray[np.int64]
Points = npt.NDArray[np.float64]
FrameOutputs = Mapping[str, npt.NDArray[Any]]  # The outputs of a model for one frame.

_PackedMask = tuple[int, bytes]  # Rows, and the compressed pixels.

_ROWS = 300  # Rows of a mask that are scored, about; more cost time and hardly change the mean IoU.
_SAMPLED_CELLS = 200  # Cells of a segmentation's scores that calibrate the temperature, per frame.
_SCORE_BINS = 200  # Ranges of a box's score in which average precision does not distinguish.


class Scorer(Protocol):
    """Scores the answers of a reference model and a local model of one task."""

    metric: str  # The accuracy's name.
    unit: str  # The things that a reliability diagram counts.

    def answer(self, outputs: FrameOutputs, manifest: Manifest, reference: Geometry, own: Geometry) -> Any:
        """Returns an answer as `count` takes it; `reference` and `own` are the geometries of the two models' inputs."""

    def true_answer(self, truth: Any, reference: Geometry) -> Any:
        """Returns the truth as `count` takes it."""

    def result_as_truth(self, outputs: FrameOutputs, manifest: Manifest, reference: Geometry) -> Any:
        """Returns the result that a worker would send, in place of a bag's truth."""

    def count(self, truth: Any, answer: Any) -> Counts:
        """Returns the counts of presenting an answer for a frame."""

    def accuracy(self, counts: Counts) -> Points:
        """Returns the accuracy for each row of counts …×N in points, 0 to 100; NaN if undefined."""

    def confidence_outputs(self, outputs: FrameOutputs, manifest: Manifest) -> FrameOutputs:
        """Returns the outputs that the task's confidence needs, as few as possible."""

    def samples(
        self, outputs: FrameOutputs, truth: Any, manifest: Manifest, reference: Geometry, own: Geometry
    ) -> CalibrationSamples:
        """Returns samples that calibrate the local model, of its outputs and its truth."""


class ClassificationScorer:
    """Counts right answers."""

    metric, unit = "accuracy", "frames"

    def answer(self, outputs: FrameOutputs, _manifest: Manifest, _reference: Geometry, _own: Geometry) -> int:
        """See Scorer."""
        return int(outputs["scores"].argmax())

    def true_answer(self, truth: int, _reference: Geometry) -> int:
        """See Scorer."""
        return truth

    def result_as_truth(self, outputs: FrameOutputs, _manifest: Manifest, _reference: Geometry) -> int:
        """See Scorer."""
        return int(outputs["scores"].argmax())

    def count(self, truth: int, answer: int) -> Counts:
        """Returns the number of right answers, and of all."""
        return np.array([truth == answer, 1], np.int64)

    def accuracy(self, counts: Counts) -> Points:
        """See Scorer."""
        return np.asarray(100 * counts[..., 0] / counts[..., 1])

    def confidence_outputs(self, outputs: FrameOutputs, _manifest: Manifest) -> FrameOutputs:
        """See Scorer."""
        return {"scores": outputs["scores"]}

    def samples(
        self, outputs: FrameOutputs, truth: int, _manifest: Manifest, _reference: Geometry, _own: Geometry
    ) -> CalibrationSamples:
        """Returns one sample."""
        return CalibrationSamples(log_probabilities(outputs["scores"])[np.newaxis], np.array([truth], np.intp))


class SegmentationScorer:
    """Counts the right, true and presented pixels by class, of about `_ROWS` rows of the camera's image.

    Masks are kept compressed, since a drive has hundreds.
    """

    metric, unit = "mIoU", "pixels"

    def __init__(self, classes: ClassMap) -> None:
        self._classes = classes

    def answer(self, outputs: FrameOutputs, _manifest: Manifest, reference: Geometry, _own: Geometry) -> _PackedMask:
        """See Scorer. A mask of another size is scaled to the reference's, as on the vehicle."""
        mask = outputs["mask"]
        size = (reference.target_width, reference.target_height)
        if mask.shape != size[::-1]:
            mask = np.asarray(cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST_EXACT), np.uint8)
        return _packed(self._classes.of_network(to_source(mask, reference, UNSEEN)))

    def true_answer(self, truth: Pixels, _reference: Geometry) -> _PackedMask:
        """See Scorer."""
        return _packed(self._classes.of_truth(np.asarray(truth, np.uint8)))

    def result_as_truth(self, outputs: FrameOutputs, _manifest: Manifest, reference: Geometry) -> Pixels:
        """See Scorer."""
        return to_source(outputs["mask"], reference, UNSEEN)

    def count(self, truth: _PackedMask, answer: _PackedMask) -> Counts:
        """Returns the tallies as one row."""
        return tallies(_unpacked(truth), _unpacked(answer), len(self._classes.names)).ravel()

    def accuracy(self, counts: Counts) -> Points:
        """See Scorer."""
        names = self._classes.names
        return 100 * mean_iou(counts.reshape(*counts.shape[:-1], 3, len(names)), counted_classes(names))

    def confidence_outputs(self, outputs: FrameOutputs, _manifest: Manifest) -> FrameOutputs:
        """Returns the scores as float16, since their differences are what counts."""
        found = outputs.get(CONFIDENCE_HEAD)
        return {} if found is None else {CONFIDENCE_HEAD: found.astype(np.float16)}

    def samples(
        self, outputs: FrameOutputs, truth: Pixels, _manifest: Manifest, _reference: Geometry, own: Geometry
    ) -> CalibrationSamples:
        """Returns some cells of the scores, evenly distributed, with the true class at their centre.

        There are none if the truth has other classes than the model.
        """
        scores = outputs[CONFIDENCE_HEAD]
        height, width, classes = scores.shape
        if not self._classes.is_identity:
            return CalibrationSamples(np.empty((0, classes), np.float32), np.empty(0, np.intp))
        cells = np.arange(height * width)[:: max(1, height * width // _SAMPLED_CELLS)]
        rows = _source_pixels(cells // width, height, own.target_height, (own.paste_top, own.paste_height),
                              (own.crop_top, own.crop_height))  # fmt: skip
        columns = _source_pixels(cells % width, width, own.target_width, (own.paste_left, own.paste_width),
                                 (own.crop_left, own.crop_width))  # fmt: skip
        seen = (rows >= 0) & (rows < truth.shape[0]) & (columns >= 0) & (columns < truth.shape[1])
        true = truth[rows[seen], columns[seen]].astype(np.intp)
        sampled = scores.reshape(-1, classes)[cells[seen]].astype(np.float32)
        return CalibrationSamples(sampled[true < classes], true[true < classes])


class DetectionScorer:
    """Counts true boxes, and presented boxes that match one or none, by class and score."""

    metric, unit = "mAP", "boxes"

    def __init__(self, card: ModelCard) -> None:
        self._classes = len(card.labels.names)
        self._truth = TrueBoxes(card.labels.names)

    def answer(self, outputs: FrameOutputs, manifest: Manifest, reference: Geometry, own: Geometry) -> Detections:
        """Returns the boxes in pixels of the reference model's input."""
        return in_input(objects(outputs, own, manifest.with_score_threshold(LOW_SCORE)), reference)

    def true_answer(self, truth: Any, reference: Geometry) -> Any:
        """Returns boxes in pixels of the reference model's input, and their classes."""
        return self._truth.in_input(truth, reference)

    def result_as_truth(self, outputs: FrameOutputs, manifest: Manifest, reference: Geometry) -> Detections:
        """See Scorer."""
        return objects(outputs, reference, manifest)

    def count(self, truth: Any, answer: Detections) -> Counts:
        """Returns the counts class by class: true boxes, then boxes that match by score, then boxes that do not."""
        matched = matched_boxes(answer, truth, self._classes, HEADLINE_SIZE)
        counts = np.zeros((self._classes, 1 + 2 * _SCORE_BINS), np.int64)
        counts[:, 0] = matched.truths
        for row, scores, hits in zip(counts, matched.scores, matched.hits, strict=True):
            bins = np.minimum((scores * _SCORE_BINS).astype(np.intp), _SCORE_BINS - 1)
            row[1 : 1 + _SCORE_BINS] = np.bincount(bins[hits], minlength=_SCORE_BINS)
            row[1 + _SCORE_BINS :] = np.bincount(bins[~hits], minlength=_SCORE_BINS)
        return counts.ravel()

    def accuracy(self, counts: Counts) -> Points:
        """Returns the mean of the classes' average precision."""
        of_classes = []
        for row in np.moveaxis(counts.reshape(*counts.shape[:-1], self._classes, -1), -2, 0):
            hits, others = row[..., 1 : 1 + _SCORE_BINS][..., ::-1], row[..., 1 + _SCORE_BINS :][..., ::-1]
            of_classes.append(precision_area(hits, hits + others, row[..., 0]))
        return 100 * defined_mean(np.stack(of_classes), np.isfinite(of_classes), axis=0)

    def confidence_outputs(self, outputs: FrameOutputs, _manifest: Manifest) -> FrameOutputs:
        """Returns the anchors that may be boxes."""
        likely = outputs["scores"].max(axis=1) >= LOWEST_SCORE
        return {name: outputs[name][likely] for name in ("boxes", "scores")}

    def samples(
        self, outputs: FrameOutputs, truth: Any, manifest: Manifest, reference: Geometry, own: Geometry
    ) -> CalibrationSamples:
        """Returns the boxes that the confidence counts; the true class is whether a box matches a true one."""
        found = objects(outputs, own, manifest.with_score_threshold(LOWEST_SCORE))
        true = self._truth.in_input(truth, reference)
        matched = matched_boxes(in_input(found, reference), true, self._classes, 0.0)
        odds, hits = log_odds(np.concatenate(matched.scores)), np.concatenate(matched.hits)
        return CalibrationSamples(np.stack([np.zeros_like(odds), odds], axis=1), hits.astype(np.intp))


def scorer_for(card: ModelCard, classes: ClassMap | None) -> Scorer:
    """Returns the scorer of a reference model's task.

    Args:
        card: The reference model.
        classes: The compared classes of masks; None for other tasks.

    Raises:
        EvaluationError: a bag has no ground truth for the task.
    """
    match card.task:
        case "classification":
            return ClassificationScorer()
        case "segmentation":
            assert classes is not None
            return SegmentationScorer(classes)
        case "detection":
            return DetectionScorer(card)
    raise EvaluationError(
        f"{card.name} is a model of the task {card.task}, for which a bag has no ground truth: choose another model"
    )


def _packed(mask: Pixels) -> _PackedMask:
    step = max(1, round(mask.shape[0] / _ROWS))
    rows = np.ascontiguousarray(mask[::step, ::step], np.uint8)
    return len(rows), zlib.compress(rows.tobytes(), 1)


def _unpacked(packed: _PackedMask) -> npt.NDArray[np.uint8]:
    return np.frombuffer(zlib.decompress(packed[1]), np.uint8).reshape(packed[0], -1)


def _source_pixels(
    cells: npt.NDArray[np.intp], count: int, target: int, paste: tuple[int, int], crop: tuple[int, int]
) -> npt.NDArray[np.intp]:
    """Returns the pixels of the source along one axis under the centres of cells, which divide the target evenly.

    `paste` and `crop` are start and length; see `Geometry`.
    """
    in_target = (cells + 0.5) * target / count
    return np.floor((in_target - paste[0]) / paste[1] * crop[1] + crop[0]).astype(np.intp)
