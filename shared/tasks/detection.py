"""Detection: the objects in a frame, from the boxes and class scores of all anchors, or from the boxes a model selected."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging import boxes
from shared.imaging.geometry import Geometry, Resize, plan
from shared.imaging.image_files import ImageArray
from shared.imaging.labels import MAX_LABELS, Labels
from shared.imaging.opencv import cv2
from shared.messages import tensors
from shared.messages.frame import FrameMessage
from shared.messages.results import MAX_DETECTIONS, Detections, array_of, check_scored
from shared.task import Confidence, Head, calibrated_sigmoid, log_odds
from shared.tasks.drawing import draw_boxes

LOWEST_SCORE = 0.01  # Boxes with a lower score are background without doubt.
_BOX_VALUES = 4  # x1, y1, x2, y2.
_MAX_CANDIDATES = 4096  # Limits the time of suppression, which is quadratic.
_OVERHANG = 2.0  # Distance of a box edge from the input, relative to its larger side; prevents overflows.
_MIN_OVERLAP = 0.75  # Overlap of two boxes of the same class that show the same object.


class DetectionTask:
    """A result is a `Detections`, encoded as `boxes` (float32, N×4), `class_ids` (uint16, N) and `scores` (float32, N)."""

    result_name = "detection"
    codecs = tensors.TENSOR_CODECS
    has_shape = False
    sinks = ("jsonl", "overlay")
    labels = (1, MAX_LABELS)
    heads: ClassVar[dict[str, Head]] = {
        "boxes": Head(("boxes",), "float32", (-1, _BOX_VALUES)),
        "scores": Head(("logits", "probabilities"), "float32", (-1, "labels")),
    }
    optional_heads: ClassVar[dict[str, Head]] = {
        "classes": Head(("classes",), "float32", (-1,)),
        "count": Head(("count",), "float32", ()),
    }
    settings = ("box_format", "detection")
    comparison = (
        "labels: objects that both find; off by: largest difference of a number; truth: mean average precision against the "
        "bag's boxes, from 12 pixels on"
    )

    def result(self, outputs: Mapping[str, Any], message: FrameMessage, manifest: Any) -> Detections:
        """Returns the objects, best first, in pixels of the original frame."""
        return objects(outputs, message.geometry, manifest)

    def encode(self, result: Detections, codec: str) -> Buffer:
        """See Task."""
        arrays: dict[str, Any] = {"boxes": result.boxes, "class_ids": result.class_ids, "scores": result.scores}
        return tensors.encode(arrays, codec)

    def decode(
        self, data: Buffer, codec: str, _shape: Any, geometry: Geometry | None = None, labels: int = MAX_LABELS
    ) -> Detections:
        """See Task."""
        arrays = tensors.decode(data, codec)
        class_ids, scores = array_of(arrays, "class_ids", "uint16"), array_of(arrays, "scores", "float32")
        corners = array_of(arrays, "boxes", "float32", (_BOX_VALUES,))
        check_scored(class_ids, scores, MAX_DETECTIONS, labels)
        if len(corners) != len(class_ids):
            raise SkylaneError(f"{len(corners)} boxes for {len(class_ids)} classes: send one box per class")
        if not (np.isfinite(corners).all() and (corners[:, :2] <= corners[:, 2:]).all()):
            raise SkylaneError("a box has a coordinate that is not finite, or x2 < x1, or y2 < y1: send x1, y1, x2, y2")
        if geometry is not None:
            size = (geometry.source_width, geometry.source_height)
            if not ((corners >= 0).all() and (corners[:, 2:] <= size).all()):
                raise SkylaneError("a box reaches over the frame's edge")
        return Detections(corners, class_ids, scores)

    def draw(
        self, rgb: ImageArray, result: Detections, labels: Labels, geometry: Geometry, _opacity: float
    ) -> ImageArray:
        """Draws labelled boxes."""
        return draw_boxes(rgb, result, labels, geometry)

    def json_fields(self, result: Detections, geometry: Geometry, labels: Labels) -> dict[str, Any]:
        """Returns `frame` (height, width) and `detections` with name, id, score and box (x1, y1, x2, y2 in pixels)."""
        found = zip(result.class_ids.tolist(), result.scores.tolist(), result.boxes.tolist(), strict=True)
        size = [geometry.source_height, geometry.source_width]
        return {"frame": size, "detections": [{**labels.scored(*scored), "box": box} for *scored, box in found]}

    def agreement(self, reference: Mapping[str, Any], given: Mapping[str, Any], manifest: Any) -> float:
        """Returns the number of matched objects in both over the number of all objects."""
        height, width = manifest.input.height, manifest.input.width
        geometry = plan(Resize.STRETCH, height, width, height, width)
        matched = total = 0
        for number in range(len(reference["scores"])):
            ours, theirs = (
                objects({name: values[number] for name, values in outputs.items()}, geometry, manifest)
                for outputs in (reference, given)
            )
            total += len(ours.boxes) + len(theirs.boxes)
            if len(ours.boxes) and len(theirs.boxes):
                overlaps = boxes.pairwise_iou(ours.boxes.astype(np.float64), theirs.boxes.astype(np.float64))
                overlaps[ours.class_ids[:, np.newaxis] != theirs.class_ids[np.newaxis]] = 0.0
                while overlaps.size and overlaps.max() >= _MIN_OVERLAP:  # The best pair first, each object once.
                    one, other = np.unravel_index(overlaps.argmax(), overlaps.shape)
                    overlaps[one, :] = overlaps[:, other] = 0.0
                    matched += 2
        return matched / total if total else 1.0

    def confidence(self, outputs: Mapping[str, Any], manifest: Any, temperature: float) -> Confidence:
        """Returns the score of every box that non-maximum suppression leaves, also of those below the score threshold."""
        height, width = manifest.input.height, manifest.input.width
        geometry = plan(Resize.STRETCH, height, width, height, width)
        found = objects(outputs, geometry, manifest.with_score_threshold(LOWEST_SCORE))
        return Confidence(calibrated_sigmoid(log_odds(found.scores), temperature), two_sided=True)


def objects(outputs: Mapping[str, Any], geometry: Geometry, manifest: Any) -> Detections:
    """Returns the objects of one frame, best first, in pixels of the source of `geometry`.

    Each anchor has its most probable class (the lowest id if equal), and is dropped below the score threshold.
    Non-maximum suppression keeps the better of two overlapping boxes of the same class, unless the model selected its boxes
    itself. Boxes outside the frame, such as in the margins of a letterbox, are dropped.

    Raises:
        SkylaneError: the outputs of a model that selects its boxes contradict each other or its labels.
    """
    corners = outputs["boxes"]  # float32 A×4
    is_selected = "classes" in outputs
    class_ids, best = _selected(outputs, manifest) if is_selected else _most_probable(outputs["scores"])
    candidates = np.flatnonzero(best >= manifest.detection.score_threshold)
    candidates = candidates[np.argsort(-best[candidates], kind="stable")][:_MAX_CANDIDATES]
    side = max(manifest.input.height, manifest.input.width)
    kept = np.clip(corners[candidates], -_OVERHANG * side, (1 + _OVERHANG) * side).astype(np.float64)
    in_frame = boxes.to_source(kept, geometry)
    visible = np.flatnonzero((in_frame[:, 2:] > in_frame[:, :2]).all(axis=1))
    anchors = candidates[visible]
    if is_selected:
        chosen = visible[: manifest.detection.max_detections]
        _check_named(class_ids[candidates[chosen]], manifest)
    else:
        chosen = visible[_suppress(kept[visible], best[anchors], class_ids[anchors], manifest.detection)]
    anchors = candidates[chosen]
    return Detections(in_frame[chosen], class_ids[anchors].astype(np.uint16), best[anchors])


def _most_probable(scores: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Returns the class and the score of each anchor, from scores A×C."""
    class_ids = scores.argmax(axis=1)
    return class_ids, scores[np.arange(len(scores)), class_ids]


def _selected(outputs: Mapping[str, Any], manifest: Any) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Returns the class and the score of each valid box that the model selected."""
    scores, classes = outputs["scores"], outputs["classes"]  # float32 A
    sizes = {head: len(outputs[head]) for head in ("boxes", "scores", "classes")}
    if len(set(sizes.values())) > 1:
        given = ", ".join(f"{size} {head}" for head, size in sizes.items())
        raise SkylaneError(f"the model gives {given}: name the outputs of one selection in outputs")
    count = np.ravel(outputs.get("count", len(scores)))[0]
    valid = slice(int(np.clip(count, 0, len(scores))))
    return np.rint(classes[valid]).astype(np.intp) - manifest.detection.first_class, scores[valid]


def _check_named(class_ids: npt.NDArray[np.intp], manifest: Any) -> None:
    """Raises a SkylaneError for a class without a label."""
    unnamed = class_ids[(class_ids < 0) | (class_ids >= len(manifest.labels))]
    if len(unnamed):
        first = manifest.detection.first_class
        raise SkylaneError(
            f"the model answers class {unnamed[0] + first}, and its labels name {first} to "
            f"{len(manifest.labels) + first - 1}: correct labels or detection.first_class"
        )


def _suppress(
    corners: npt.NDArray[np.float64],
    scores: npt.NDArray[np.float32],
    class_ids: npt.NDArray[np.intp],
    section: Any,
) -> npt.NDArray[np.intp]:
    """Returns the indices of the boxes that remain, best first: non-maximum suppression per class."""
    if not len(corners):
        return np.empty(0, np.intp)
    # OpenCV separates the classes by shifting their boxes, which requires coordinates from 0.
    corners = corners - corners.min()
    rectangles = np.hstack((corners[:, :2], corners[:, 2:] - corners[:, :2]))
    kept = cv2.dnn.NMSBoxesBatched(
        rectangles.tolist(), scores.tolist(), class_ids.tolist(), -1.0, section.iou_threshold
    )
    return np.asarray(kept, np.intp).reshape(-1)[: section.max_detections]
