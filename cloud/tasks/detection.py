"""Detection: from a box and a score a class for every anchor to the objects in the frame."""

import numpy as np
import numpy.typing as npt

from cloud.engines.engine import Outputs
from cloud.models.manifest import DetectionSection, Manifest
from shared.imaging import boxes
from shared.imaging.geometry import Geometry
from shared.imaging.opencv import cv2
from shared.messages.frame import FrameMessage
from shared.messages.results import Detections, Result

_MAX_CANDIDATES = 4096  # Suppression compares each with each: what a model without shame scores must end in time.
_REACH = 2.0  # How far a box may reach beyond its input, in sides of it: an overflow would spoil all overlaps.


def result(outputs: Outputs, message: FrameMessage, manifest: Manifest) -> Result:
    """The objects, the best first, in pixels of the original frame."""
    return objects(outputs, message.geometry, manifest)


def objects(outputs: Outputs, geometry: Geometry, manifest: Manifest) -> Detections:
    """The objects in one frame's outputs, the best first, in pixels of the source of `geometry`.

    Every anchor is taken for its most probable class (of equal ones the lowest id), if that is probable enough. Of two
    boxes of one class that overlap too much the better one is told; those of different classes suppress none of each
    other. A box that lies outside the frame, as in a letterbox's margins, is none.
    """
    scores, corners = outputs["scores"], outputs["boxes"]  # float32 A×C, A×4
    class_ids = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), class_ids]
    candidates = np.flatnonzero(best >= manifest.detection.score_threshold)
    candidates = candidates[np.argsort(-best[candidates], kind="stable")][:_MAX_CANDIDATES]
    side = max(manifest.input.height, manifest.input.width)
    kept = np.clip(corners[candidates], -_REACH * side, (1 + _REACH) * side).astype(np.float64)
    laid = boxes.to_source(kept, geometry)
    seen = np.flatnonzero((laid[:, 2:] > laid[:, :2]).all(axis=1))
    chosen = seen[_without_doubles(kept[seen], best[candidates[seen]], class_ids[candidates[seen]], manifest.detection)]
    told = candidates[chosen]
    return Detections(laid[chosen], class_ids[told].astype(np.uint16), best[told])


def _without_doubles(
    corners: npt.NDArray[np.float64],
    scores: npt.NDArray[np.float32],
    class_ids: npt.NDArray[np.intp],
    section: DetectionSection,
) -> npt.NDArray[np.intp]:
    """The places of the boxes that stay, the best first: non-maximum suppression, class by class."""
    if not len(corners):
        return np.empty(0, np.intp)
    # OpenCV keeps the classes apart by moving each beside the last, which needs boxes from 0 on.
    corners = corners - corners.min()
    rectangles = np.hstack((corners[:, :2], corners[:, 2:] - corners[:, :2]))
    kept = cv2.dnn.NMSBoxesBatched(
        rectangles.tolist(), scores.tolist(), class_ids.tolist(), -1.0, section.iou_threshold
    )
    return np.asarray(kept, np.intp).reshape(-1)[: section.max_detections]
