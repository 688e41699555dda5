"""Masks and boxes moved from the frame of a result to the present."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge.presenting.flow import FlowTrack, Motion
from edge.presenting.warp import doubt_of, moved_detections, moved_mask, moved_result
from shared.imaging.geometry import Geometry, Resize, plan
from shared.imaging.opencv import cv2
from shared.messages.results import Classification, Detections
from tests.support.moving_camera import GEOMETRY, HEIGHT, WIDTH, MovingCamera

_EDGE = 32  # Pixels near the border that may have come from outside.


def _motion(*places: tuple[int, int], geometry: Geometry = GEOMETRY) -> Motion:
    """Returns the motion of a camera from the first of these places to the last."""
    camera, track = MovingCamera(), FlowTrack()
    for number, (x, y) in enumerate(places):
        track.add(camera.tick(number, x, y, geometry=geometry))
    motion = track.motion_since(0)
    assert motion is not None
    return motion


def _boxes(*corners: tuple[float, float, float, float]) -> Detections:
    numbers = np.arange(len(corners))
    return Detections(
        np.array(corners, np.float32).reshape(-1, 4), numbers.astype(np.uint16), (1 - numbers / 10).astype(np.float32)
    )


@pytest.mark.parametrize("place", [(8, 0), (5, -3), (-7, 6)])
def test_a_mask_moves_by_whole_pixels(place: tuple[int, int]) -> None:
    """Away from the border, the moved mask is what the camera sees now, but for single pixels at edges of classes."""
    camera = MovingCamera()
    moved = moved_mask(camera.mask(0), _motion((0, 0), place), GEOMETRY)
    inner = (slice(_EDGE, -_EDGE), slice(_EDGE, -_EDGE))
    is_right = moved == camera.mask(*place)
    assert is_right[inner].mean() > 0.997


def test_a_mask_of_a_camera_that_stands_still_is_unchanged() -> None:
    """Without motion, moving is the identity, up to the border."""
    mask = MovingCamera().mask(0)
    np.testing.assert_array_equal(moved_mask(mask, _motion((0, 0), (0, 0)), GEOMETRY), mask)


def test_what_comes_into_view_has_the_class_at_the_border() -> None:
    """Only classes of the mask appear, also where the camera saw nothing before."""
    mask = np.full((HEIGHT, WIDTH), 3, np.uint8)
    assert (moved_mask(mask, _motion((0, 0), (20, 0)), GEOMETRY) == 3).all()


def test_the_margins_of_a_letterbox_stay() -> None:
    """The padding is no part of the camera's image, so that nothing moves into it or out of it."""
    geometry = plan(Resize.LETTERBOX, HEIGHT // 2, WIDTH, HEIGHT, WIDTH)
    top, height = geometry.paste_top, geometry.paste_height
    assert top > 0
    mask = np.full((HEIGHT, WIDTH), 9, np.uint8)
    mask[top : top + height] = MovingCamera().mask(0)[top : top + height]
    moved = moved_mask(mask, _motion((0, 0), (0, 8), geometry=geometry), geometry)
    assert (moved[:top] == 9).all()
    assert (moved[top + height :] == 9).all()
    assert not (moved[top : top + height] == 9).any()


def test_doubt_shows_what_was_outside_and_what_does_not_fit() -> None:
    """A strip as wide as the movement was outside; a thing that appears differs in brightness."""
    camera, track = MovingCamera(), FlowTrack()
    track.add(camera.tick(0, 0))
    later = camera.tick(1, 16)
    later.image[80:112, 120:152] = 0
    track.add(later)
    motion = track.motion_since(0)
    assert motion is not None
    doubt = doubt_of(motion)
    scale = HEIGHT // motion.now.shape[0]
    assert doubt.is_outside[8:-8, -1].mean() > 0.95
    assert not doubt.is_outside[8:-8, : -2 * 16 // scale].any()
    appeared = doubt.residual[80 // scale : 112 // scale, 120 // scale : 152 // scale]
    assert np.median(appeared) > 10 * max(1, np.median(doubt.residual))


def test_boxes_move_with_their_content_and_are_clipped() -> None:
    """The camera moves to the right and down, so that objects move to the left and up in its image."""
    moved = moved_detections(_boxes((100, 80, 160, 120), (4, 60, 60, 100)), _motion((0, 0), (8, 4)), GEOMETRY)
    np.testing.assert_allclose(moved.boxes, [(92, 76, 152, 116), (0, 56, 52, 96)], atol=0.3)
    assert moved.class_ids.tolist() == [0, 1]
    assert moved.scores.tolist() == pytest.approx([1.0, 0.9])


def test_a_box_that_has_left_the_image_is_removed() -> None:
    """The others keep their order, classes and scores."""
    moved = moved_detections(
        _boxes((300, 60, 318, 90), (100, 80, 160, 120), (2, 2, 3, 3)), _motion((0, 0), (-16, 0), (-32, 0)), GEOMETRY
    )
    assert moved.class_ids.tolist() == [1, 2]
    assert moved.scores.tolist() == pytest.approx([0.9, 0.8])


def test_boxes_move_in_pixels_of_the_frame() -> None:
    """The frame is three times as large as the model's input."""
    geometry = plan(Resize.STRETCH, 3 * HEIGHT, 3 * WIDTH, HEIGHT, WIDTH)
    moved = moved_detections(_boxes((300, 240, 480, 360)), _motion((0, 0), (8, 4), geometry=geometry), geometry)
    np.testing.assert_allclose(moved.boxes, [(276, 228, 456, 348)], atol=1)


def test_a_box_grows_with_its_content() -> None:
    """The camera comes 10 % nearer to everything; the middle of the image stays."""
    camera, track = MovingCamera(), FlowTrack()
    track.add(camera.tick(0, 0))
    nearer = camera.tick(1, 0)
    zoom = cv2.getRotationMatrix2D((WIDTH / 2 - 0.5, HEIGHT / 2 - 0.5), 0, 1.1)
    image: Any = cv2.warpAffine(nearer.image, zoom, (WIDTH, HEIGHT))
    track.add(replace(nearer, image=image))
    motion = track.motion_since(0)
    assert motion is not None
    moved = moved_detections(_boxes((110, 56, 190, 136)), motion, GEOMETRY)
    np.testing.assert_allclose(moved.boxes, [(105, 52, 193, 140)], atol=0.7)


def test_no_boxes_stay_none() -> None:
    """An empty road is a result, too."""
    moved = moved_detections(_boxes(), _motion((0, 0), (8, 4)), GEOMETRY)
    assert moved.boxes.shape == (0, 4)
    assert len(moved.scores) == len(moved.class_ids) == 0


def test_only_results_with_places_move() -> None:
    """A mask of another size and a classification have no place in the model's input."""
    motion = _motion((0, 0), (8, 4))
    other = np.zeros((HEIGHT, WIDTH + 2), np.uint8)
    classification = Classification((0,), (1.0,))
    assert moved_result(other, motion, GEOMETRY) is None
    assert moved_result(classification, motion, GEOMETRY) is None
    assert isinstance(moved_result(_boxes((1, 1, 9, 9)), motion, GEOMETRY), Detections)
