from functools import lru_cache

import cv2
import numpy as np
import pytest

from rosbag_tools.drive.canvas import BUILDING, CAR, POLE, ROAD, SKY, Canvas
from rosbag_tools.drive.scene import CLASSES, WEATHERS, Drive, SceneFrame
from rosbag_tools.drive.view import Placed, far_to_near
from rosbag_tools.drive.weather import weather
from shared.errors import UnknownNameError

WIDTH, HEIGHT = 484, 304
SEEDS = range(5)


@lru_cache(maxsize=64)
def frame(seed: int, time_s: float, name: str = "clear", *, static: bool = False) -> SceneFrame:
    """Renders a small frame; the results are cached because several tests use the same frames."""
    return Drive(seed, width=WIDTH, height=HEIGHT, weather=name, static_camera=static).render(time_s)


def same(left: SceneFrame, right: SceneFrame) -> bool:
    """Returns whether image, labels and boxes of two frames are equal."""
    return (
        left.rgb.tobytes() == right.rgb.tobytes()
        and left.class_ids.tobytes() == right.class_ids.tobytes()
        and left.boxes == right.boxes
    )


@pytest.mark.parametrize("name", WEATHERS)
def test_a_frame_depends_on_seed_and_time_and_not_on_the_order_of_rendering(name: str) -> None:
    """Training renders random times and a bag renders them in order; both must get the same drive."""
    forward = Drive(2, width=WIDTH, height=HEIGHT, weather=name)
    backward = Drive(2, width=WIDTH, height=HEIGHT, weather=name)
    times = (0.5, 31.0)
    ordered = [forward.render(time_s) for time_s in times]
    reversed_ = [backward.render(time_s) for time_s in times[::-1]][::-1]
    assert all(same(left, right) for left, right in zip(ordered, reversed_, strict=True))


def test_different_seeds_give_different_scenes() -> None:
    """An evaluation on seeds that look like the training seeds would be meaningless."""
    assert not np.array_equal(frame(0, 1.0).class_ids, frame(1, 1.0).class_ids)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frame_has_an_rgb_image_and_a_class_for_every_pixel(seed: int) -> None:
    """A label file has no name for an id above the twelve classes."""
    scene = frame(seed, 7.0)
    assert scene.rgb.shape == (HEIGHT, WIDTH, 3)
    assert scene.class_ids.shape == (HEIGHT, WIDTH)
    assert scene.rgb.dtype == scene.class_ids.dtype == np.uint8
    assert scene.class_ids.max() < len(CLASSES) == 12


def test_every_class_appears_over_a_few_seeds() -> None:
    """A class that is never drawn can be neither trained nor evaluated."""
    counts = sum(np.bincount(frame(seed, 7.0).class_ids.ravel(), minlength=12) for seed in SEEDS)
    assert np.asarray(counts).min() > 20


def test_sky_is_above_and_road_below() -> None:
    """The check would fail if the labels were upside down."""
    ids = frame(1, 3.0).class_ids
    rows = np.arange(HEIGHT)[:, None] * np.ones_like(ids)
    assert rows[ids == SKY].max() < rows[ids == ROAD].max()
    assert rows[ids == SKY].mean() < HEIGHT * 0.45 < rows[ids == ROAD].mean()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_four_edges_of_a_box_touch_pixels_of_its_class(seed: int) -> None:
    """Detectors are trained with the boxes, so the boxes must agree with the labels."""
    scene = frame(seed, 7.0)
    assert scene.boxes
    for box in scene.boxes:
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= WIDTH
        assert box.y + box.height <= HEIGHT
        inside = scene.class_ids[int(box.y) : int(box.y + box.height), int(box.x) : int(box.x + box.width)]
        own = inside == CLASSES.index(box.name)
        assert own[0].any()
        assert own[-1].any()
        assert own[:, 0].any()
        assert own[:, -1].any()


def test_all_pixels_of_boxed_classes_are_in_boxes_of_their_class() -> None:
    """A detector would learn a car without a box as background. Parts of fewer than 12 pixels have no box."""
    scene = frame(4, 7.0)
    outside = scene.class_ids == CAR
    for box in scene.boxes:
        if box.name == "car":
            outside[int(box.y) : int(box.y + box.height), int(box.x) : int(box.x + box.width)] = False
    count, _, stats, _ = cv2.connectedComponentsWithStats(outside.astype(np.uint8))
    assert all(stats[at, cv2.CC_STAT_AREA] < 12 for at in range(1, count))


def test_buildings_move_for_a_driving_camera_and_not_for_a_static_one() -> None:
    """`--static-camera` is for tests of the difference detector, so only the traffic may change."""
    moving = frame(1, 5.0).class_ids == BUILDING, frame(1, 8.0).class_ids == BUILDING
    first, later = frame(1, 5.0, static=True), frame(1, 8.0, static=True)
    still = first.class_ids == BUILDING, later.class_ids == BUILDING
    assert (moving[0] != moving[1]).mean() > 5 * (still[0] != still[1]).mean()
    assert not np.array_equal(first.class_ids, later.class_ids)
    untouched = np.all(first.rgb == later.rgb, axis=2)
    assert untouched.mean() > 0.5


def test_the_weather_changes_the_image_and_not_the_labels() -> None:
    """Results in different weathers are comparable only if the labels are the same."""
    frames = [frame(2, 6.0, name) for name in WEATHERS]
    for at, one in enumerate(frames):
        assert np.array_equal(one.class_ids, frames[0].class_ids)
        for other in frames[at + 1 :]:
            assert np.abs(one.rgb.astype(int) - other.rgb).mean() > 4


@pytest.mark.parametrize("name", WEATHERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_haze_leaves_at_least_a_quarter_of_the_contrast_at_80_metres(name: str, seed: int) -> None:
    """Labelled objects must be visible, or the labels are noise."""
    assert float(weather(name, seed).veil(80.0)) <= 0.75


def test_an_unknown_weather_is_refused_with_the_nearest_name() -> None:
    """The error contains the correct name, so that a typo is easy to correct."""
    with pytest.raises(UnknownNameError, match="did you mean rain"):
        Drive(1, width=WIDTH, height=HEIGHT, weather="rainy")


def test_boxes_move_little_between_consecutive_times() -> None:
    """If boxes jumped, difference detectors and trackers would get noise instead of motion."""
    drive = Drive(4, width=WIDTH, height=HEIGHT)
    first, later = drive.render(10.0), drive.render(10.02)
    kept = 0
    for box in first.boxes:
        kept += any(
            other.name == box.name and abs(other.x - box.x) < 12 and abs(other.y - box.y) < 12 for other in later.boxes
        )
    assert kept >= 0.9 * len(first.boxes)


def test_objects_are_painted_from_far_to_near() -> None:
    """In the wrong order, a distant bus would cover a near person in both image and labels."""
    order: list[str] = []

    def thing(name: str, sides: tuple[float, float], depths: tuple[float, float]) -> Placed:
        return Placed(*sides, *depths, (0.0, 100.0), lambda: order.append(name))

    rider_beside_parked_car = [
        thing("rider", (1.2, 1.7), (16.0, 16.0)),
        thing("parked", (2.0, 3.8), (14.0, 18.0)),
        thing("far", (1.0, 3.0), (40.0, 44.0)),
        thing("near", (-1.0, 1.0), (6.0, 10.0)),
    ]
    for placed in far_to_near(rider_beside_parked_car):
        placed.paint()
    assert order == ["far", "parked", "rider", "near"]


def test_shapes_have_the_same_edge_in_image_and_labels() -> None:
    """Labels are exact: every pixel in the colour of a pole has the label of the pole."""
    canvas = Canvas(60, 40)
    canvas.fill(np.array([[3, 2], [31, 7], [24, 33]], np.int32), (200, 10, 10), POLE)
    canvas.line((40, 5), (55, 30), 5, (200, 10, 10), POLE)
    assert np.array_equal(canvas.rgb[..., 0] == 200, canvas.class_ids() == POLE)
    assert (canvas.class_ids() == POLE).sum() > 300


def test_objects_beyond_the_limit_of_owner_ids_are_still_labelled() -> None:
    """Owner ids have 8 bits; objects beyond them get labels but no boxes."""
    canvas = Canvas(8, 8)
    owners = [canvas.new_thing(CAR) for _ in range(300)]
    assert owners[-1] == CAR
    canvas.fill(np.array([[0, 0], [7, 0], [7, 7], [0, 7]], np.int32), (1, 2, 3), owners[200])
    assert (canvas.class_ids() == CAR).all()
