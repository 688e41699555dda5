"""The presenter that combines the newest result, moved to now, with the local model's result for now.

Which of the two is right was measured (`fusion_table.py`): for each pixel by the classes that both give it, by the age of the
result, by how well the moved picture fits the present one, and by the local model's probabilities.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.presenting.flow import FlowTrack, Motion, picture
from edge.presenting.fusion_table import AGREEMENTS, CERTAINTIES, SCORES, FusionTable, read_fusion
from edge.presenting.local import LocalOutput
from edge.presenting.presenter import ArrivedResult, Output, PresenterParts, Tick
from edge.presenting.warp import moved_output
from edge.presenting.warping import doubt_of
from shared.imaging.boxes import pairwise_iou
from shared.imaging.geometry import Geometry
from shared.imaging.mask_codecs import Mask
from shared.imaging.opencv import cv2
from shared.messages.results import Detections
from shared.runlog.presented_log import OutputOrigin

Indices = npt.NDArray[np.intp]

_NS_PER_MS = 1e6
_RESIDUALS = np.digitize(np.arange(256), (4, 10, 24)).astype(np.uint8)  # Grey levels; the last range is "outside".
_OUTSIDE = 4
# Ranges of the local model's highest probability, and of its probability for the moved result's class; of 255.
_CERTAINTIES = np.digitize(np.arange(256), (128, 204, 242)).astype(np.uint8)
_AGREEMENTS = np.digitize(np.arange(256), (3, 26, 102)).astype(np.uint8)
_SAME_OBJECT = 0.5  # Intersection over union from which two boxes of a class show the same object.


class FusePresenter:
    """Presents both results combined; the local one alone without a usable remote one, and the other way round."""

    def __init__(self, parts: PresenterParts) -> None:
        """`parts` has a local model and a fusion file.

        Raises:
            FusionError: the file is missing or invalid.
        """
        assert parts.local is not None
        assert parts.fusion is not None
        self._local = parts.local
        self._table = read_fusion(parts.fusion)
        self._track = FlowTrack(parts.clock_ns)

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        self._track.add(tick)
        if newest is not None and newest.due_ns >= tick.due_ns:
            return Output(newest.origin, newest.result)
        local: LocalOutput | None = self._local(tick)
        if local is None:
            return moved_output(self._track, tick, newest)
        age = None if newest is None else self._table.age_index((tick.due_ns - newest.due_ns) / _NS_PER_MS)
        if newest is None or age is None:
            return Output(OutputOrigin.LOCAL, local.result)
        moved = moved_output(self._track, tick, newest)
        motion = self._track.motion_since(newest.due_ns)
        if moved.origin is not OutputOrigin.WARPED or motion is None:
            return Output(OutputOrigin.LOCAL, local.result)
        fused = (
            fused_detections(self._table, age, moved.result, local.result)
            if isinstance(moved.result, Detections)
            else fused_mask(self._table, age, MaskPair(moved.result, local, motion, tick.geometry))
        )
        return Output(OutputOrigin.FUSED, fused, flow=moved.flow)


@dataclass(frozen=True, slots=True)
class MaskPair:
    """The masks of both models at a tick, and what tells how far each of them can be trusted."""

    moved: Mask  # The reference model's, moved to now.
    local: LocalOutput
    motion: Motion  # Since the frame of the reference model's.
    geometry: Geometry


def fused_mask(table: FusionTable, age: int, pair: MaskPair) -> Mask:
    """Returns the class of each pixel by the table. The margins of a letterbox are those of the moved mask.

    `age`: index of an age of the table.
    """
    moved = pair.moved
    chosen = table.arrays["classes"][age].ravel().take(table_indices(table.header.labels, pair))
    if chosen.shape == moved.shape:
        return np.asarray(chosen, np.uint8)
    whole = moved.copy()
    picture(whole, pair.geometry)[...] = chosen
    return whole


def table_indices(labels: int, pair: MaskPair) -> Indices:
    """Returns the place of each pixel of the picture in the table of one age.

    The features besides the two classes are coarse; they are looked up by the point of the motion's grid and the class.
    """
    doubt = doubt_of(pair.motion)
    rows, columns = doubt.residual.shape
    residual = _RESIDUALS.take(doubt.residual)
    residual[doubt.is_outside] = _OUTSIDE
    code = residual.astype(np.intp)[..., np.newaxis]
    if pair.local.probabilities is None:
        code = code * (CERTAINTIES * AGREEMENTS)
    else:
        probabilities = _on_grid(pair.local.probabilities, rows, columns, pair.geometry)
        certainty = _CERTAINTIES.take(probabilities.max(axis=-1))[..., np.newaxis]
        code = (code * CERTAINTIES + certainty) * AGREEMENTS + _AGREEMENTS.take(probabilities)
    by_class = (code * labels + np.arange(labels)) * labels  # rows×columns×labels
    remote, own = (np.minimum(picture(mask, pair.geometry), labels - 1) for mask in (pair.moved, pair.local.result))
    height, width = remote.shape
    return np.asarray(by_class.ravel().take(_first_places(height, width, rows, columns, labels) + remote) + own)


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
    """Returns the range of each score in a table of detection."""
    return np.minimum((scores * SCORES).astype(np.intp), SCORES - 1)


def _on_grid(
    probabilities: npt.NDArray[np.uint8], rows: int, columns: int, geometry: Geometry
) -> npt.NDArray[np.uint8]:
    """Returns the probabilities at the points of the motion's grid, which covers the picture without its padding."""
    across, down = columns / geometry.paste_width, rows / geometry.paste_height
    size = (round(geometry.target_width * across), round(geometry.target_height * down))
    resized: Any = cv2.resize(probabilities, size, interpolation=cv2.INTER_LINEAR)
    top, left = round(geometry.paste_top * down), round(geometry.paste_left * across)
    part = resized.reshape(size[1], size[0], -1)[top : top + rows, left : left + columns]
    return part if part.shape[:2] == (rows, columns) else cv2.resize(part, (columns, rows))


@lru_cache(maxsize=4)
def _first_places(height: int, width: int, rows: int, columns: int, labels: int) -> Indices:
    """Returns, for each pixel, the place of its point of the grid in an array rows×columns×labels; do not change it."""
    row, column = np.arange(height) * rows // height, np.arange(width) * columns // width
    places = (row[:, np.newaxis] * columns + column) * labels
    places.flags.writeable = False
    return np.asarray(places, np.intp)
