"""The classifier and the detector that ship: that they do, on scenes of drives they never saw, what they are for."""

import numpy as np
import pytest

from cloud.engines.engine import Placement
from cloud.models.repository import Repository, default_root
from modelling.recipes import recipe
from modelling.training.dataset import TrainingView, generator, rendered_view
from modelling.training.scenes.scene_store import HEIGHT, WIDTH
from rosbag_tools.drive.scene import WEATHERS

SEED = 970_001  # Of no training and no validation.


@pytest.mark.parametrize("name", ["road-weather", "road-objects"])
def test_a_shipped_model_is_small_and_its_batch_is_free(name: str) -> None:
    """They travel with the source, and a worker batches frames of many vehicles."""
    repository = Repository(default_root())
    assert repository.file(name).stat().st_size < 6_000_000
    manifest = repository.manifest(name)
    assert tuple(label.name for label in manifest.labels) == recipe(name).class_names
    assert (manifest.trained, manifest.batching.max_size) == (True, 8)


def test_the_classifier_tells_each_weather() -> None:
    """In training.json 199 of 200 frames are right; five easy ones must be."""
    made = recipe("road-weather")
    views = [TrainingView(SEED, weather, 3.0) for weather in WEATHERS]
    pictures = np.stack([rendered_view(view, made.height, made.width, generator(view))[1] for view in views])
    with Repository(default_root()).load("road-weather", Placement(device="cpu")) as model:
        scores = model.infer(pictures)["scores"]
    assert scores.argmax(axis=1).tolist() == list(range(len(WEATHERS)))
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)


def test_the_detector_is_surest_where_something_is() -> None:
    """The best box of a frame lies on a true one: their middles are nearer than half its size."""
    view = TrainingView(SEED, "overcast", 3.0)
    frame, picture = rendered_view(view, HEIGHT, WIDTH, generator(view))
    with Repository(default_root()).load("road-objects", Placement(device="cpu")) as model:
        outputs = model.infer(picture[np.newaxis])
    boxes, scores = outputs["boxes"][0], outputs["scores"][0]
    assert boxes.shape == (76 * 121, 4)
    assert scores.shape == (76 * 121, 2)
    left, top, right, bottom = boxes[scores.max(axis=1).argmax()] * (frame.rgb.shape[1] / WIDTH)
    across, down = (left + right) / 2, (top + bottom) / 2
    assert any(
        abs(box.x + box.width / 2 - across) < box.width / 2 and abs(box.y + box.height / 2 - down) < box.height / 2
        for box in frame.boxes
    )
