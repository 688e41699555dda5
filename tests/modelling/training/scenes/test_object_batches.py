"""What the detector is taught: boxes stay on their things, and a perfect answer costs nothing."""

from pathlib import Path

import numpy as np
import pytest

from modelling.architectures import detector
from modelling.frameworks import tf
from modelling.training.scenes.losses import generalised_iou, object_loss
from modelling.training.scenes.object_batches import DetectionTarget, ObjectLoader, detection_target, split_boxes
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore, box_rows
from rosbag_tools.drive.scene import Box

TAUGHT = np.array([[0, 20, 30, 80, 70], [1, 60, 40, 72, 64]], np.float32)
NONE = np.empty((0, 5), np.float32)


@pytest.fixture
def store(tmp_path: Path) -> SceneStore:
    """Two dark scenes, each with one bright vehicle."""
    for name, values in (
        ("pictures", np.full((2, HEIGHT, WIDTH, 3), 20, np.uint8)),
        ("weathers", np.zeros(2, np.uint8)),
        ("boxes", np.full((2, 192, 5), -1, np.float32)),
    ):
        np.save(tmp_path / f"{name}.npy", values)
    made = SceneStore.open(tmp_path)
    for place, (left, top, right, bottom) in enumerate(((100, 80, 220, 160), (200, 120, 300, 200))):
        made.pictures[place, top:bottom, left:right] = 235
        made.boxes[place, 0] = (0, left, top, right, bottom)
    return made


def test_a_crop_keeps_its_boxes_on_their_things(store: SceneStore) -> None:
    """Mirrored, cut or drawn nearer, a box a few pixels beside its car would teach the wrong place."""
    with ObjectLoader(store, np.arange(2), batch=4, height=256, width=416, seed=3) as batches:
        for _ in range(5):
            pictures, wanted = next(batches)
            for picture, boxes, weights in zip(pictures, wanted.boxes, wanted.weights, strict=True):
                assert weights.any()
                left, top, right, bottom = boxes[np.unravel_index(weights.argmax(), weights.shape)]
                middle = (float(picture.min()) + float(picture.max())) / 2
                rows, columns = np.nonzero(picture.mean(axis=2) > middle)
                extent = np.percentile(columns, [1, 99]), np.percentile(rows, [1, 99])
                np.testing.assert_allclose((left, right), extent[0], atol=4)
                np.testing.assert_allclose((top, bottom), extent[1], atol=4)


def test_the_middle_of_each_thing_is_one_cell_and_the_nearer_keeps_its_core() -> None:
    """Two middles in one class's heat are two things; a person before a car must not learn the car's size."""
    made = detection_target(TAUGHT, NONE, 96, 128)
    assert made.heat.shape == (24, 32, 2)
    assert np.argwhere(made.heat[..., 0] == 1).tolist() == [[12, 12]]
    assert np.argwhere(made.heat[..., 1] == 1).tolist() == [[13, 16]]
    np.testing.assert_array_equal(made.boxes[13, 16], TAUGHT[1, 1:])
    np.testing.assert_array_equal(made.boxes[12, 12], TAUGHT[0, 1:])


def test_what_is_too_small_or_mostly_cut_is_not_judged() -> None:
    """A mirror of a car at the crop's edge teaches nothing, and calling it background would teach blindness."""
    rows = np.array(
        [[0, -90, 10, 10, 60], [1, 50, 50, 53, 56], [0, -10, 10, 90, 60], [0, 200, 200, 260, 260]], np.float32
    )
    taught, unjudged = split_boxes(rows, 96, 128)
    np.testing.assert_array_equal(taught, [[0, 0, 10, 90, 60]])
    np.testing.assert_array_equal(unjudged, [[0, 0, 10, 10, 60], [1, 50, 50, 53, 56]])
    made = detection_target(NONE, unjudged, 96, 128)
    assert made.counted[4, 1] == 0
    assert made.counted[20, 30] == 1


def test_boxes_are_read_from_shapes_as_the_docstring_says() -> None:
    """The graph that ships and the loss both rest on it."""
    shapes = np.zeros((1, 2, 3, 4), np.float32)
    shapes[0, 1, 2] = (0.5, -0.25, np.log(4), np.log(2))  # 4 px right, 2 px up, 32 wide, 16 high.
    boxes = detector.decode_boxes(tf.constant(shapes), 2, 3).numpy()
    np.testing.assert_allclose(boxes[0, 1, 2], (10 + 4 - 16, 6 - 2 - 8, 10 + 4 + 16, 6 - 2 + 8), atol=1e-4)
    np.testing.assert_allclose(boxes[0, 0, 0], (-2, -2, 6, 6), atol=1e-5)


def test_the_perfect_answer_costs_next_to_nothing_and_any_other_more() -> None:
    """A loss that is least elsewhere would train something else."""
    made = DetectionTarget(*(values[np.newaxis] for values in detection_target(TAUGHT, NONE, 96, 128)))
    middle = made.heat == 1
    logits = np.where(middle, 12.0, -12.0).astype(np.float32)
    centres = (np.stack(np.meshgrid(np.arange(32), np.arange(24)), axis=-1) + 0.5) * detector.STRIDE
    sizes = np.maximum(made.boxes[..., 2:] - made.boxes[..., :2], 1)
    offsets = (made.boxes[..., :2] + made.boxes[..., 2:]) / 2 - centres
    shapes = np.concatenate([offsets / 8, np.log(sizes / 8)], axis=-1).astype(np.float32)
    best = float(object_loss((tf.constant(logits), tf.constant(shapes)), made))
    assert best == pytest.approx(0, abs=1e-3)
    assert float(object_loss((tf.constant(-logits), tf.constant(shapes)), made)) > 1
    assert float(object_loss((tf.constant(logits), tf.constant(shapes + 0.5)), made)) > 0.1


def test_generalised_iou_falls_further_where_boxes_are_apart() -> None:
    """Its gradient is what pulls a box towards a thing that it does not touch."""
    thing = tf.constant([[0.0, 0.0, 10.0, 10.0]] * 3)
    boxes = tf.constant([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0], [90.0, 0.0, 100.0, 10.0]])
    same, near, far = generalised_iou(boxes, thing).numpy()
    assert same == pytest.approx(1)
    assert near == pytest.approx(-1 / 3)
    assert far == pytest.approx(-0.8)


def test_all_kinds_of_vehicles_are_vehicles_and_riders_are_persons() -> None:
    """Two classes are what so small a network can tell in these few pixels."""
    rows = box_rows([Box("bus", 4, 8, 40, 20), Box("rider", 0, 0, 8, 12), Box("tram", 0, 0, 8, 8)], 0.25)
    np.testing.assert_array_equal(rows, [[0, 1, 2, 11, 7], [1, 0, 0, 2, 3]])
