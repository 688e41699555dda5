"""Training of the classifiers and the detector on rendered scenes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelling.architectures.weights import Weights
from modelling.building import shipped_weights
from modelling.recipes import recipe
from rosbag_tools.drive.drive_views import HELD_OUT_WEATHER, validation_views
from rosbag_tools.drive.scene import HEIGHT_SHARE, OBJECTS, PRESENCE, WEATHERS
from shared.imaging.labels import Labels
from shared.models.repository import default_root
from training.dataset import HEIGHT, WIDTH, SceneStore
from training.recipe_training import train
from training.scene_batches import PresenceLoader, WeatherLoader, answer
from training.scene_tasks import TASKS, SceneTask
from training.scene_training import train_network
from training.segmentation import TrainingError
from training.trainer import TrainingProgress
from training.weights import unfold


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


@pytest.mark.parametrize("task", TASKS.values())
def test_validation_scenes_are_not_from_training_drives(task: SceneTask) -> None:
    """Results on training data would be meaningless."""
    training, validation = task.training_views(task.settings.frames), task.validation_views(200)
    assert not {view.seed for view in training} & {view.seed for view in validation}
    assert {view.weather for view in training} == {view.weather for view in validation} == set(WEATHERS)
    assert len(set(training)) == task.settings.frames


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("road-objects", {"steps": 8, "batch": 1}),
        ("car-tiny", {"steps": 24, "batch": 8}),
    ],
)
def test_a_short_training_reduces_the_loss(
    scenes: SceneStore, start: Weights, tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    """A complete training on five scenes, with a checkpoint."""
    settings = replace(TASKS[recipe(name).class_names].settings, **changes)
    progress: list[TrainingProgress] = []
    weights = train_network(recipe(name), scenes, tmp_path, settings, progress.append, start=start)
    losses = [each.loss for each in progress]
    assert len(losses) == settings.steps
    assert progress[-1].done == 1
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert set(np.load(tmp_path / "checkpoint.npz").files) == weights.keys()


def test_the_classifiers_are_trained_on_all_weathers(scenes: SceneStore) -> None:
    """Only the detector's training omits one weather, to measure its accuracy in unknown light."""
    held_out = {names: task.held_out_weather for names, task in TASKS.items()}
    assert held_out == {WEATHERS: None, tuple(OBJECTS): HELD_OUT_WEATHER, PRESENCE: None}
    with WeatherLoader(scenes, batch=40, height=152, width=242, seed=1) as batches:
        images, weathers = next(batches)
    assert images.shape == (40, HEIGHT // 2, WIDTH // 2, 3)
    assert set(weathers.tolist()) == {0, 1, 2, 3, 4}


def test_a_model_with_the_weights_of_another_is_not_trained(tmp_path: Path) -> None:
    """The error names the recipe to train instead."""
    with pytest.raises(TrainingError, match="train road-small, then run `skylane model build car-reference`"):
        train(
            recipe("car-reference"),
            tmp_path,
            {},
            lambda _done, _text: None,
            source=default_root(),
            labels=Labels((), ()),
        )


def test_fixed_cameras_see_one_place(tmp_path: Path) -> None:
    """The views of a camera differ in the traffic, not in the street."""
    first, second = TASKS[PRESENCE].training_views(2)
    assert (first.seed, first.static_camera, second.static_camera) == (second.seed, True, True)
    store = SceneStore.render([first, second], tmp_path, processes=1)
    difference = np.abs(store.pictures[0].astype(int) - store.pictures[1]).mean(axis=2)
    assert (difference < 25).mean() > 0.7


def test_only_a_large_vehicle_is_an_answer(scenes: SceneStore) -> None:
    """A person does not count, and a crop of the lower half makes a vehicle larger."""
    large = HEIGHT_SHARE * HEIGHT
    rows = np.full((3, 5), -1, np.float32)
    rows[0] = (list(OBJECTS).index("person"), 10, 10, 60, 10 + large)
    assert answer(rows, HEIGHT) == PRESENCE.index("no vehicle")
    rows[1] = (list(OBJECTS).index("vehicle"), 10, 10, 60, 9 + large)
    assert answer(rows, HEIGHT) == PRESENCE.index("no vehicle")
    assert answer(rows, HEIGHT / 2) == PRESENCE.index("vehicle")
    with PresenceLoader(scenes, batch=20, height=76, width=121, seed=1) as batches:
        images, answers = next(batches)
    assert images.shape == (20, 76, 121, 3)
    assert set(answers.tolist()) <= {0, 1}
