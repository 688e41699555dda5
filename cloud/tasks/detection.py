"""Detection: the objects in a frame, from the boxes and class scores of all anchors."""

import numpy as np
import numpy.typing as npt

from cloud.engines.engine import Outputs
from cloud.models.manifest import DetectionSection, Manifest
from shared.imaging import boxes
from shared.imaging.geometry import Geometry
from shared.imaging.opencv import cv2
from shared.messages.frame import FrameMessage
from shared.messages.results import Detections, Result

_MAX_CANDIDATES = 4096  # Limits the time of suppression, which is quadratic.
_OVERHANG = 2.0  # Distance of a box edge from the input, relative to its larger side; prevents overflows.


def result(outputs: Outputs, message: FrameMessage, manifest: Manifest) -> Result:
    """Returns the objects, best first, in pixels of the original frame."""
    return objects(outputs, message.geometry, manifest)


def objects(outputs: Outputs, geometry: Geometry, manifest: Manifest) -> Detections:
    """Returns the objects of one frame, best first, in pixels of the source of `geometry`.

    Each anchor has its most probable class (the lowest id if equal), and is dropped below the score threshold.
    Non-maximum suppression keeps the better of two overlapping boxes of the same class. Boxes outside the frame, such as
    in the margins of a letterbox, are dropped.
    """
    scores, corners = outputs["scores"], outputs["boxes"]  # float32 A×C, A×4
    class_ids = scores.argmax(axis=1)
    best = scores[np.arange(len(scores)), class_ids]
    candidates = np.flatnonzero(best >= manifest.detection.score_threshold)
    candidates = candidates[np.argsort(-best[candidates], kind="stable")][:_MAX_CANDIDATES]
    side = max(manifest.input.height, manifest.input.width)
    kept = np.clip(corners[candidates], -_OVERHANG * side, (1 + _OVERHANG) * side).astype(np.float64)
    in_frame = boxes.to_source(kept, geometry)
    visible = np.flatnonzero((in_frame[:, 2:] > in_frame[:, :2]).all(axis=1))
    anchors = candidates[visible]
    chosen = visible[_suppress(kept[visible], best[anchors], class_ids[anchors], manifest.detection)]
    anchors = candidates[chosen]
    return Detections(in_frame[chosen], class_ids[anchors].astype(np.uint16), best[anchors])


def _suppress(
    corners: npt.NDArray[np.float64],
    scores: npt.NDArray[np.float32],
    class_ids: npt.NDArray[np.intp],
    section: DetectionSection,
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
