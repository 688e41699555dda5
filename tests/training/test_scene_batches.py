"""The detector's training data and loss."""

from pathlib import Path

import numpy as np
import pytest

from modelling.architectures import networks
from modelling.evaluation.bag_images import split_boxes
from modelling.frameworks import tf
from rosbag_tools.drive.scene import Box
from training.dataset import HEIGHT, WIDTH, SceneStore, box_rows
from training.scene_batches import DetectionTarget, ObjectLoader, detection_target
from training.scene_tasks import generalised_iou, object_loss

TRAINED = np.array([[0, 20, 30, 80, 70], [1, 60, 40, 72, 64]], np.float32)
NONE = np.empty((0, 5), np.float32)


@pytest.fixture
def store(tmp_path: Path) -> SceneStore:
    """A store of two dark scenes, each with one bright vehicle."""
    for name, values in (
        ("pictures", np.full((2, HEIGHT, WIDTH, 3), 20, np.uint8)),
        ("weathers", np.zeros(2, np.uint8)),
        ("boxes", np.full((2, 192, 5), -1, np.float32)),
    ):
        np.save(tmp_path / f"{name}.npy", values)
    store = SceneStore.open(tmp_path)
    for index, (left, top, right, bottom) in enumerate(((100, 80, 220, 160), (200, 120, 300, 200))):
        store.pictures[index, top:bottom, left:right] = 235
        store.boxes[index, 0] = (0, left, top, right, bottom)
    return store


def test_a_crops_boxes_stay_on_their_objects(store: SceneStore) -> None:
    """Cropping, scaling and mirroring move image and boxes together."""
    with ObjectLoader(store, np.arange(2), batch=4, height=256, width=416, seed=3) as batches:
        for _ in range(5):
            images, target = next(batches)
            for image, boxes, weights in zip(images, target.boxes, target.weights, strict=True):
                assert weights.any()
                left, top, right, bottom = boxes[np.unravel_index(weights.argmax(), weights.shape)]
                middle = (float(image.min()) + float(image.max())) / 2
                rows, columns = np.nonzero(image.mean(axis=2) > middle)
                extent = np.percentile(columns, [1, 99]), np.percentile(rows, [1, 99])
                np.testing.assert_allclose((left, right), extent[0], atol=4)
                np.testing.assert_allclose((top, bottom), extent[1], atol=4)


def test_each_object_has_one_centre_cell_and_the_smaller_one_keeps_its_cells() -> None:
    """The cells of a person in front of a car must have the person's box."""
    target = detection_target(TRAINED, NONE, 96, 128)
    assert target.heat.shape == (24, 32, 2)
    assert np.argwhere(target.heat[..., 0] == 1).tolist() == [[12, 12]]
    assert np.argwhere(target.heat[..., 1] == 1).tolist() == [[13, 16]]
    np.testing.assert_array_equal(target.boxes[13, 16], TRAINED[1, 1:])
    np.testing.assert_array_equal(target.boxes[12, 12], TRAINED[0, 1:])


def test_small_and_mostly_hidden_objects_are_ignored() -> None:
    """They are neither objects nor background in the loss."""
    rows = np.array(
        [[0, -90, 10, 10, 60], [1, 50, 50, 53, 56], [0, -10, 10, 90, 60], [0, 200, 200, 260, 260]], np.float32
    )
    trained, ignored = split_boxes(rows, 96, 128)
    np.testing.assert_array_equal(trained, [[0, 0, 10, 90, 60]])
    np.testing.assert_array_equal(ignored, [[0, 0, 10, 10, 60], [1, 50, 50, 53, 56]])
    target = detection_target(NONE, ignored, 96, 128)
    assert target.counted[4, 1] == 0
    assert target.counted[20, 30] == 1


def test_shapes_are_decoded_to_boxes_as_documented() -> None:
    """The built-in graph and the loss both use this function."""
    shapes = np.zeros((1, 2, 3, 4), np.float32)
    shapes[0, 1, 2] = (0.5, -0.25, np.log(4), np.log(2))  # 4 px right, 2 px up, 32 wide, 16 high.
    boxes = networks.decode_boxes(tf.constant(shapes), 2, 3).numpy()
    np.testing.assert_allclose(boxes[0, 1, 2], (10 + 4 - 16, 6 - 2 - 8, 10 + 4 + 16, 6 - 2 + 8), atol=1e-4)
    np.testing.assert_allclose(boxes[0, 0, 0], (-2, -2, 6, 6), atol=1e-5)


def test_the_loss_is_zero_for_the_target_and_positive_for_other_outputs() -> None:
    """Wrong classes and wrong boxes each increase the loss."""
    target = DetectionTarget(*(values[np.newaxis] for values in detection_target(TRAINED, NONE, 96, 128)))
    logits = np.where(target.heat == 1, 12.0, -12.0).astype(np.float32)
    centres = (np.stack(np.meshgrid(np.arange(32), np.arange(24)), axis=-1) + 0.5) * networks.STRIDE
    sizes = np.maximum(target.boxes[..., 2:] - target.boxes[..., :2], 1)
    offsets = (target.boxes[..., :2] + target.boxes[..., 2:]) / 2 - centres
    shapes = np.concatenate([offsets / 8, np.log(sizes / 8)], axis=-1).astype(np.float32)
    perfect = float(object_loss((tf.constant(logits), tf.constant(shapes)), target))
    assert perfect == pytest.approx(0, abs=1e-3)
    assert float(object_loss((tf.constant(-logits), tf.constant(shapes)), target)) > 1
    assert float(object_loss((tf.constant(logits), tf.constant(shapes + 0.5)), target)) > 0.1


def test_generalised_iou_decreases_with_the_distance_of_the_boxes() -> None:
    """Its gradient moves a box towards an object that it does not overlap."""
    objects = tf.constant([[0.0, 0.0, 10.0, 10.0]] * 3)
    boxes = tf.constant([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0], [90.0, 0.0, 100.0, 10.0]])
    same, near, far = generalised_iou(boxes, objects).numpy()
    assert same == pytest.approx(1)
    assert near == pytest.approx(-1 / 3)
    assert far == pytest.approx(-0.8)


def test_the_drives_classes_are_grouped_into_vehicles_and_persons() -> None:
    """A bus is a vehicle, a rider a person; other classes are omitted."""
    rows = box_rows([Box("bus", 4, 8, 40, 20), Box("rider", 0, 0, 8, 12), Box("tram", 0, 0, 8, 8)], 0.25)
    np.testing.assert_array_equal(rows, [[0, 1, 2, 11, 7], [1, 0, 0, 2, 3]])
