"""Training of the classifier and the detector on rendered scenes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelling.building import shipped_weights
from modelling.recipes import Output, recipe
from modelling.training.dataset import HELD_OUT_WEATHER, training_views, validation_views
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore
from modelling.training.scenes.scene_training import DEFAULT_SETTINGS, train_network
from modelling.training.scenes.weather_batches import WeatherLoader
from modelling.training.trainer import TrainingProgress
from modelling.training.weights import Weights, unfold
from rosbag_tools.drive.scene import WEATHERS
from shared.models.repository import default_root


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> SceneStore:
    """One scene of each weather."""
    views = [
        replace(view, weather=weather) for view, weather in zip(validation_views(5, WEATHERS), WEATHERS, strict=True)
    ]
    return SceneStore.render(views, tmp_path_factory.mktemp("scenes"), processes=1)


@pytest.fixture(scope="module")
def start() -> Weights:
    """The built-in weights of road-small, with separate batch normalisation."""
    small = recipe("road-small")
    return unfold(shipped_weights(small, default_root()), small.network(folded=False))


def test_scenes_have_image_weather_and_boxes(scenes: SceneStore) -> None:
    """All boxes are within the image."""
    assert scenes.pictures.shape == (5, HEIGHT, WIDTH, 3)
    assert scenes.weathers.tolist() == [0, 1, 2, 3, 4]
    for image, rows in zip(scenes.pictures, scenes.boxes, strict=True):
        assert image.std() > 5
        boxes = rows[rows[:, 0] >= 0]
        assert len(boxes)
        assert boxes[:, 1:].min() >= 0
        assert (boxes[:, 3:] <= (WIDTH, HEIGHT)).all()
        assert (boxes[:, 3:] > boxes[:, 1:3]).all()


def test_validation_scenes_are_not_from_training_drives() -> None:
    """Results on training data would be meaningless."""
    training = {view.seed for view in training_views(2000, weathers=WEATHERS)}
    assert not training & {view.seed for view in validation_views(200, WEATHERS)}
    assert HELD_OUT_WEATHER in WEATHERS


@pytest.mark.parametrize(
    ("name", "changes"), [("road-weather", {"steps": 24, "batch": 8}), ("road-objects", {"steps": 12, "batch": 1})]
)
def test_a_short_training_reduces_the_loss(
    scenes: SceneStore, start: Weights, tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    """A complete training on five scenes, with a checkpoint."""
    settings = replace(DEFAULT_SETTINGS[recipe(name).output], **changes)
    progress: list[TrainingProgress] = []
    weights = train_network(recipe(name), scenes, tmp_path, settings, progress.append, start=start)
    losses = [each.loss for each in progress]
    assert len(losses) == settings.steps
    assert progress[-1].done == 1
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert set(np.load(tmp_path / "checkpoint.npz").files) == weights.keys()


def test_the_classifier_is_trained_on_all_weathers(scenes: SceneStore) -> None:
    """Only the detector's training omits one weather, to measure its accuracy in unknown light."""
    assert DEFAULT_SETTINGS[Output.OBJECTS].crop is not None
    assert DEFAULT_SETTINGS[Output.PROBABILITIES].crop is None
    with WeatherLoader(scenes, batch=40, seed=1) as batches:
        images, weathers = next(batches)
    assert images.shape == (40, HEIGHT // 2, WIDTH // 2, 3)
    assert set(weathers.tolist()) == {0, 1, 2, 3, 4}
