"""The presenter that combines the newest result, moved along the image motion to now, with the local model's result.

The reliability of both was measured (`fusion_table.py`): for each pixel by the classes of both, the age of the
result, the difference between the moved picture and the present one, and the local model's probabilities.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.presenting.flow import FlowTrack, Motion, picture
from edge.presenting.fusion_table import AGREEMENTS, CERTAINTIES, SCORES, FusionTable, fusion_for
from edge.presenting.presenter import ArrivedResult, Output, PresenterParts, Tick
from edge.presenting.warp import doubt_of, moved_output
from edge.reuse.local_model import LocalModel, scaled_mask
from shared.imaging import boxes, geometry
from shared.imaging.boxes import pairwise_iou
from shared.imaging.codec import Mask
from shared.imaging.frames import Layout
from shared.imaging.geometry import Geometry, Resize
from shared.imaging.image_files import ImageArray
from shared.imaging.opencv import cv2
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.messages.results import Detections
from shared.runlog.presented_log import OutputOrigin
from shared.task import CONFIDENCE_HEAD, calibrated_softmax
from shared.tasks.detection import objects

_SOFTENING = 2.0  # Divides the scores, so that 8 bits resolve small probabilities.


@dataclass(frozen=True, slots=True)
class LocalOutput:
    """The local model's result for a tick, in the form of the reference model's."""

    result: Any  # The type that the task of the model decodes.
    # h×w×C, 255 times the softened probability of each class; h×w is the size of the model's scores. None: no scores.
    probabilities: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class LocalResults:
    """Runs the local model when called: returns its output for a tick, or None if it failed or is paused."""

    model: LocalModel

    def __call__(self, tick: Tick) -> LocalOutput | None:
        """Runs the model on the image of the tick."""
        if not self.model.is_on:
            return None
        model = self.model.model
        outputs = self.model.infer(local_input(tick.image, model.card))
        return None if outputs is None else local_output(outputs, tick.geometry, model)

    def problem(self) -> str:
        """Returns why the model gave no output; empty if it never failed."""
        return f"local model: {self.model.pause_reason}" if self.model.pause_reason else ""


def local_input(image: ImageArray, card: ModelCard) -> ImageArray:
    """Returns the reference model's input, RGB, as the input of the local model with the given card."""
    height, width = image.shape[:2]
    resized = np.asarray(geometry.apply(image, _from_input(height, width, card.height, card.width)), np.uint8)
    return resized[..., ::-1] if card.layout is Layout.BGR8 else resized


def local_output(outputs: Mapping[str, Any], plan: Geometry, model: Model) -> LocalOutput:
    """Makes the output for a tick from the local model's outputs for one image.

    `plan`: the geometry of the reference model's input. Scores are only used if there is one for each class.
    """
    height, width = plan.target_height, plan.target_width
    if "mask" in outputs:
        scores: Any = outputs.get(CONFIDENCE_HEAD)
        has_scores = scores is not None and scores.shape[-1] == len(model.card.labels.names)
        probabilities = _as_bytes(calibrated_softmax(scores, _SOFTENING)) if has_scores else None
        return LocalOutput(scaled_mask(outputs["mask"], height, width), probabilities)
    detections = objects(outputs, _from_input(height, width, model.card.height, model.card.width), model.manifest)
    return LocalOutput(Detections(boxes.to_source(detections.boxes, plan), detections.class_ids, detections.scores))


def _from_input(height: int, width: int, own_height: int, own_width: int) -> Geometry:
    return geometry.plan(Resize.STRETCH, height, width, own_height, own_width)


def _as_bytes(probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.asarray(probabilities * 255 + 0.5, np.uint8)


Indices = npt.NDArray[np.intp]

_NS_PER_MS = 1e6
_RESIDUALS = np.digitize(np.arange(256), (4, 10, 24)).astype(np.uint8)  # Grey levels; the last range is "outside".
_OUTSIDE = 4
# Ranges of the local model's highest probability, and of its probability for the moved result's class; of 255.
_CERTAINTIES = np.digitize(np.arange(256), (128, 204, 242)).astype(np.uint8)
_AGREEMENTS = np.digitize(np.arange(256), (3, 26, 102)).astype(np.uint8)
_SPACING = 4  # Pixels between two points of the grid on which the local model's probabilities are looked up.
_SAME_OBJECT = 0.5  # Intersection over union from which two boxes of a class show the same object.


class FusePresenter:
    """Presents both results combined, or only the local or the remote one if the other cannot be used."""

    def __init__(self, parts: PresenterParts) -> None:
        """`parts` must have a local model.

        Raises:
            FusionError: the fusion file is missing or invalid, or is for other models.
        """
        assert parts.local is not None
        assert parts.local_card is not None
        self._local = parts.local
        self._local_problem = parts.local_problem
        self._table = fusion_for(parts.fusion, parts.card, parts.local_card)
        self._track = FlowTrack(parts.clock_ns)

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        self._track.add(tick)
        if newest is not None and newest.due_ns >= tick.due_ns:
            return Output(newest.origin, newest.result)
        local: LocalOutput | None = self._local(tick)
        if local is None and newest is None:
            return Output(OutputOrigin.NONE, reason=self._local_problem())
        if local is None:
            return moved_output(self._track, tick, newest)
        age = None if newest is None else self._table.age_index((tick.due_ns - newest.due_ns) / _NS_PER_MS)
        if newest is None or age is None:
            return Output(OutputOrigin.LOCAL, local.result)
        moved = moved_output(self._track, tick, newest)
        motion = self._track.motion_since(newest.due_ns)
        if moved.origin is not OutputOrigin.WARPED or motion is None:
            return Output(OutputOrigin.LOCAL, local.result, flow=moved.flow)
        fused = (
            fused_detections(self._table, age, moved.result, local.result)
            if isinstance(moved.result, Detections)
            else fused_mask(self._table, age, MaskPair(moved.result, local, motion, tick.geometry))
        )
        return Output(OutputOrigin.FUSED, fused, flow=moved.flow)


@dataclass(frozen=True, slots=True)
class MaskPair:
    """The masks of both models at a tick, and the measures of how reliable each of them is."""

    moved: Mask  # The reference model's, moved to now.
    local: LocalOutput
    motion: Motion  # Motion since the frame of the reference model's mask.
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The pixels of the picture to which two masks give different classes."""

    pixels: Indices  # Indices in the flattened picture.
    places: Indices  # Index of each pixel in the table of one age.


def fused_mask(table: FusionTable, age: int, pair: MaskPair) -> Mask:
    """Returns a mask with the class on which both agree, else that of the table. A letterbox keeps its margins.

    `age`: index of an age of the table.
    """
    differing = disagreement(table.header.labels, pair)
    whole = pair.moved.copy()
    part = picture(whole, pair.geometry)
    part[np.divmod(differing.pixels, part.shape[1])] = table.arrays["classes"][age].ravel()[differing.places]
    return whole


def disagreement(labels: int, pair: MaskPair) -> Disagreement:
    """Finds the pixels with different classes, and their places in the table. `labels`: the number of classes."""
    remote, local = (picture(mask, pair.geometry) for mask in (pair.moved, pair.local.result))
    height, width = remote.shape
    pixels = np.flatnonzero(remote != local)
    remote_classes, local_classes = (np.minimum(mask.ravel()[pixels], labels - 1) for mask in (remote, local))
    doubt = doubt_of(pair.motion)
    rows, columns = doubt.residual.shape
    points = _grid_points(height, width, rows, columns)[pixels]
    residual = _RESIDUALS.take(doubt.residual)
    residual[doubt.is_outside] = _OUTSIDE
    places = residual.ravel()[points].astype(np.intp) * (CERTAINTIES * AGREEMENTS)
    if pair.local.probabilities is not None:
        down, across = -(-height // _SPACING), -(-width // _SPACING)
        points = _grid_points(height, width, down, across)[pixels]
        highest = _on_grid(pair.local.probabilities.max(axis=-1), down, across, pair.geometry).ravel()[points]
        probabilities = _on_grid(pair.local.probabilities, down, across, pair.geometry)
        of_remote = probabilities.reshape(down * across, -1)[points, remote_classes]
        places += _CERTAINTIES[highest].astype(np.intp) * AGREEMENTS + _AGREEMENTS[of_remote]
    return Disagreement(pixels, (places * labels + remote_classes) * labels + local_classes)


def fused_detections(table: FusionTable, age: int, moved: Detections, local: Detections) -> Detections:
    """Returns the objects of both results, most reliable first. The score of a box is its measured reliability.

    Of two boxes of a class that show the same object, the more reliable one stays.
    """
    sources = ((moved, table.arrays["remote"][age]), (local, table.arrays["local"]))
    scores = np.concatenate([reliability[each.class_ids, score_range(each.scores)] for each, reliability in sources])
    corners = np.concatenate([each.boxes for each, _ in sources])
    class_ids = np.concatenate([each.class_ids for each, _ in sources])
    is_same = (pairwise_iou(corners, corners) >= _SAME_OBJECT) & (class_ids[:, np.newaxis] == class_ids)
    kept: list[int] = []
    for number in np.argsort(-scores, kind="stable").tolist():
        if not is_same[number, kept].any():
            kept.append(number)
    return Detections(corners[kept], class_ids[kept], scores[kept].astype(np.float32))


def score_range(scores: npt.NDArray[Any]) -> Indices:
    """Returns the index of each score's range in a table for a detector, 0 to SCORES - 1."""
    return np.minimum((scores * SCORES).astype(np.intp), SCORES - 1)


def _on_grid(values: npt.NDArray[np.uint8], rows: int, columns: int, geometry: Geometry) -> npt.NDArray[np.uint8]:
    """Returns values that cover the model's input at the points of a grid, which covers the picture without its padding."""
    across, down = columns / geometry.paste_width, rows / geometry.paste_height
    size = (round(geometry.target_width * across), round(geometry.target_height * down))
    resized: Any = cv2.resize(values, size, interpolation=cv2.INTER_LINEAR)
    top, left = round(geometry.paste_top * down), round(geometry.paste_left * across)
    part: npt.NDArray[np.uint8] = resized[top : top + rows, left : left + columns]
    return part if part.shape[:2] == (rows, columns) else np.asarray(cv2.resize(part, (columns, rows)), np.uint8)


@lru_cache(maxsize=4)
def _grid_points(height: int, width: int, rows: int, columns: int) -> Indices:
    """Returns the point of a grid rows×columns that each pixel of a flattened picture belongs to; do not change it."""
    row, column = np.arange(height) * rows // height, np.arange(width) * columns // width
    points = (row[:, np.newaxis] * columns + column).ravel()
    points.flags.writeable = False
    return np.asarray(points, np.intp)
