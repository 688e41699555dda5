"""The layer that makes a classifier of a segmentation: is there a vehicle?"""

import numpy as np
import pytest

from modelling.architectures.networks import TallestVehicle
from modelling.architectures.weights import weights_of
from modelling.frameworks import tf
from modelling.recipes import recipe
from rosbag_tools.drive.scene import CLASSES, HEIGHT_SHARE, PRESENCE

ROWS, COLUMNS = 160, 40


def answers(share: float, name: str = "car") -> list[float]:
    """Returns the probability of each answer for one object as high as `share` of the image."""
    class_ids = np.full((ROWS, COLUMNS), CLASSES.index("road"))
    class_ids[20 : 20 + round(share * ROWS), 10:15] = CLASSES.index(name)
    scores = 12 * np.eye(len(CLASSES), dtype=np.float32)[class_ids][np.newaxis]
    return [float(each) for each in tf.nn.softmax(TallestVehicle()(tf.constant(scores)))[0].numpy()]


@pytest.mark.parametrize("name", ["car", "truck", "bus"])
def test_a_vehicle_counts_from_its_height_on(name: str) -> None:
    """A vehicle of the smallest height is undecided, and one with two thirds of it is not there."""
    vehicle = PRESENCE.index("vehicle")
    assert answers(1.3 * HEIGHT_SHARE, name)[vehicle] > 0.85
    assert answers(0.66 * HEIGHT_SHARE, name)[vehicle] < 0.05
    assert 0.2 < answers(HEIGHT_SHARE, name)[vehicle] < 0.8
    assert sum(answers(0.5, name)) == pytest.approx(1)


def test_other_objects_do_not_count() -> None:
    """A person beside the camera may be as high as a bus."""
    assert answers(0.6, "person")[PRESENCE.index("vehicle")] < 0.05


def test_the_reference_has_the_weights_of_the_segmentation() -> None:
    """It is built from them without a training."""
    reference, segmentation = recipe("car-reference"), recipe("road-small")
    assert reference.weights_of == segmentation.name
    expected, found = (weights_of(each.network(folded=True)) for each in (segmentation, reference))
    assert {name: values.shape for name, values in found.items()} == {k: v.shape for k, v in expected.items()}
