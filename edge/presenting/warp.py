"""The presenter that moves the newest result along the image motion to now; functions that move masks and boxes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.presenting.flow import (
    FlowSize,
    FlowTrack,
    Motion,
    Vectors,
    picture,
    pixel_displacement,
    pixel_positions,
    sampled,
)
from edge.presenting.presenter import ArrivedResult, Output, PresenterParts, Tick
from shared.imaging import boxes
from shared.imaging.codec import Mask
from shared.imaging.geometry import Geometry
from shared.imaging.opencv import cv2
from shared.messages.results import Detections, Result
from shared.runlog.presented_log import OutputOrigin

_CENTRE = 0.5  # The centre of a pixel in the coordinates of boxes.
_POINTS_PER_SIDE = 8  # Smallest number of points along a side of a box from which its motion is taken.
_FEWEST_FOR_GROWTH = 16  # Smallest number of points from which the growth of a box is taken.
_MOST_GROWTH = 0.5  # Largest growth of a box, relative to its size.
_BLUR_PX = 5  # Side of the square over which differences in brightness are averaged, in pixels of the grid.


@dataclass(frozen=True, slots=True)
class Doubt:
    """The places at which a moved result is likely to be wrong; both arrays have the grid of the motion, over the picture."""

    residual: npt.NDArray[np.uint8]  # Difference in brightness between the moved picture and the present one, blurred.
    is_outside: npt.NDArray[np.bool_]  # True if the point was outside the image.


def moved_result(result: Result, motion: Motion, geometry: Geometry) -> Result | None:
    """Returns a mask or detections moved to now; None for other results."""
    if isinstance(result, Detections):
        return moved_detections(result, motion, geometry)
    size = (geometry.target_height, geometry.target_width)
    return moved_mask(result, motion, geometry) if isinstance(result, np.ndarray) and result.shape == size else None


def moved_mask(mask: Mask, motion: Motion, geometry: Geometry) -> Mask:
    """Returns a mask of the model's input size, moved to now.

    Each pixel takes the class of the pixel that it comes from; what was outside the image takes the nearest class at the
    border. The margins of a letterbox stay.
    """
    part = picture(mask, geometry)
    moved: Mask = sampled(part, pixel_displacement(motion, part.shape), cv2.INTER_NEAREST)
    if part.shape == mask.shape:
        return moved
    whole = mask.copy()
    picture(whole, geometry)[...] = moved
    return whole


def doubt_of(motion: Motion) -> Doubt:
    """Compares the picture of the result's frame, moved to now, with the present picture."""
    difference = cv2.absdiff(sampled(motion.then, motion.displacement), motion.now)
    residual: Any = cv2.blur(difference, (_BLUR_PX, _BLUR_PX))
    rows, columns = motion.now.shape
    positions = _origins(motion)
    x, y = positions[..., 0], positions[..., 1]
    return Doubt(residual, (x < 0) | (x > columns - 1) | (y < 0) | (y > rows - 1))


def moved_detections(detections: Detections, motion: Motion, geometry: Geometry) -> Detections:
    """Returns the detections moved to now.

    Each box moves and grows with the points that come from inside it (medians), and is clipped to the frame. A box of which
    no point is in the picture any more is removed.
    """
    rows, columns = motion.now.shape
    to_grid = np.array([columns / geometry.paste_width, rows / geometry.paste_height] * 2)
    pasted = np.array([geometry.paste_left, geometry.paste_top] * 2)
    corners = (boxes.to_target(detections.boxes, geometry) - pasted) * to_grid
    x, y = motion.displacement[..., 0], motion.displacement[..., 1]
    reach = (np.array((x.min(), y.min())), np.array((x.max(), y.max())))
    moves = [_moved_box(box, motion.displacement, reach) for box in corners]
    kept = [number for number, moved in enumerate(moves) if moved is not None]
    moved = np.array([moves[number] for number in kept]).reshape(-1, 4) / to_grid + pasted
    in_frame = boxes.to_source(moved, geometry)
    visible = (in_frame[:, 2:] > in_frame[:, :2]).all(axis=1)
    left = np.array(kept, np.intp)[visible]
    return Detections(in_frame[visible], detections.class_ids[left], detections.scores[left])


def _origins(motion: Motion) -> Vectors:
    """Returns the position of each point when the result's frame was due, in pixels of the grid."""
    return pixel_positions(*motion.now.shape) + motion.displacement


def _moved_box(
    box: npt.NDArray[Any], displacement: Vectors, reach: tuple[npt.NDArray[Any], npt.NDArray[Any]]
) -> npt.NDArray[Any] | None:
    """Returns a box as it is now, moved and scaled with the points that come from inside it; None without such points.

    `reach`: the smallest and the largest displacement. Only points that near can come from inside the box.
    """
    low, high = box[:2] - _CENTRE, box[2:] - _CENTRE
    spacing = max(1, int((high - low).min() / _POINTS_PER_SIDE))
    widened = np.maximum(0.0, 1.0 - (high - low) / 2)  # A box is taken to have at least two points along each side.
    low, high = low - widened, high + widened
    limits = (displacement.shape[1], displacement.shape[0])
    left, top = np.clip(np.floor(low - reach[1]), 0, limits).astype(int)
    right, bottom = np.clip(np.ceil(high - reach[0]) + 1, 0, limits).astype(int)
    near = (slice(top, bottom, spacing), slice(left, right, spacing))
    vectors = displacement[near]
    origins = vectors + pixel_positions(*displacement.shape[:2])[near]
    if not origins.size:
        return None
    inside = cv2.inRange(origins, (*low, 0, 0), (*high, 0, 0)) > 0
    if not inside.any():
        return None
    then, moves = origins[inside], -vectors[inside]
    centre, move = np.median(then, axis=0), np.median(moves, axis=0)
    growth = np.array([_growth(then[:, axis], moves[:, axis]) for axis in (0, 1)])
    points = box.reshape(2, 2) - _CENTRE
    return np.asarray(points + move + (points - centre) * growth + _CENTRE).ravel()


def _growth(places: npt.NDArray[Any], moves: npt.NDArray[Any]) -> float:
    """Returns the relative growth of the distance between points along one axis.

    Compares the medians of both halves, which a few points of the background do not change.
    """
    is_high = places > np.median(places)
    if len(places) < _FEWEST_FOR_GROWTH or not 0 < is_high.sum() < len(places):
        return 0.0
    distance = np.median(places[is_high]) - np.median(places[~is_high])
    apart = np.median(moves[is_high]) - np.median(moves[~is_high])
    return float(np.clip(apart / max(distance, 1.0), -_MOST_GROWTH, _MOST_GROWTH))


class WarpPresenter:
    """Presents the newest result, moved along the optical flow. Without a known flow, the result is held."""

    largest_size = FlowSize.QUARTER

    def __init__(self, parts: PresenterParts) -> None:
        self._track = FlowTrack(parts.clock_ns, self.largest_size)

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        self._track.add(tick)
        return moved_output(self._track, tick, newest)


class FineWarpPresenter(WarpPresenter):
    """Moves results more exactly, in four times the time: flow of the full images, and more motions tried for each pixel."""

    largest_size = FlowSize.FULL


def moved_output(track: FlowTrack, tick: Tick, newest: ArrivedResult | None) -> Output:
    """Returns the newest result, moved to the present tick of the track."""
    if newest is None:
        return Output(OutputOrigin.NONE)
    if newest.due_ns >= tick.due_ns:
        return Output(newest.origin, newest.result)
    motion = track.motion_since(newest.due_ns)
    with track.timed():
        moved = None if motion is None else moved_result(newest.result, motion, tick.geometry)
    if moved is None:
        return Output(newest.origin, newest.result, flow=FlowSize.NONE)
    return Output(OutputOrigin.WARPED, moved, flow=track.size)
