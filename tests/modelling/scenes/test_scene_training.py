"""Training on scenes: that a network learns what it is shown, from another's weights, and that the scenes are true."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloud.models.repository import default_root
from modelling.building import shipped_weights
from modelling.recipes import Output, recipe
from modelling.training.dataset import HELD_OUT_WEATHER, training_views, validation_views
from modelling.training.scenes.scene_store import HEIGHT, WIDTH, SceneStore
from modelling.training.scenes.scene_training import COURSES, Report, learn
from modelling.training.scenes.weather_batches import WeatherLoader
from modelling.training.weights import Weights, read_weights, unfold
from rosbag_tools.drive.scene import WEATHERS


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> SceneStore:
    """One scene of each weather."""
    views = [
        replace(view, weather=weather) for view, weather in zip(validation_views(5, WEATHERS), WEATHERS, strict=True)
    ]
    return SceneStore.render(views, tmp_path_factory.mktemp("scenes"), processes=1)


@pytest.fixture(scope="module")
def start() -> Weights:
    """The weights of road-small that ship, unfolded."""
    small = recipe("road-small")
    return unfold(shipped_weights(small, default_root()), small.network(folded=False))


def test_scenes_hold_the_picture_the_weather_and_the_boxes(scenes: SceneStore) -> None:
    """What a model learns from must be what the vehicle would send, with the truth of that very frame."""
    assert scenes.pictures.shape == (5, HEIGHT, WIDTH, 3)
    assert scenes.weathers.tolist() == [0, 1, 2, 3, 4]
    for picture, rows in zip(scenes.pictures, scenes.boxes, strict=True):
        assert picture.std() > 5
        boxes = rows[rows[:, 0] >= 0]
        assert len(boxes)
        assert boxes[:, 1:].min() >= 0
        assert (boxes[:, 3:] <= (WIDTH, HEIGHT)).all()
        assert (boxes[:, 3:] > boxes[:, 1:3]).all()


def test_no_scene_to_validate_by_is_of_a_drive_trained_on() -> None:
    """Figures on what was trained on would be worth nothing."""
    training = {view.seed for view in training_views(2000, weathers=WEATHERS)}
    assert not training & {view.seed for view in validation_views(200, WEATHERS)}
    assert HELD_OUT_WEATHER in WEATHERS


@pytest.mark.parametrize(
    ("name", "changes"), [("road-weather", {"steps": 24, "batch": 8}), ("road-objects", {"steps": 12, "batch": 1})]
)
def test_a_short_training_learns(
    scenes: SceneStore, start: Weights, tmp_path: Path, name: str, changes: dict[str, int]
) -> None:
    """The whole of it on five scenes: batches, loss, steps, the running mean and the checkpoint."""
    made = recipe(name)
    course = replace(COURSES[made.output], steps=changes["steps"], batch=changes["batch"])
    reports: list[Report] = []
    weights = learn(made, scenes, tmp_path, course, reports.append, start=start)
    losses = [report.loss for report in reports]
    assert len(losses) == course.steps
    assert reports[-1].progress == 1
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert read_weights(tmp_path / "checkpoint.npz").keys() == weights.keys()


def test_the_held_out_weather_is_kept_from_the_detector_alone(scenes: SceneStore) -> None:
    """A classifier of weathers has to see them all; how a detector does in new light is worth knowing."""
    assert COURSES[Output.OBJECTS].crop is not None
    assert COURSES[Output.PROBABILITIES].crop is None
    with WeatherLoader(scenes, batch=40, seed=1) as batches:
        pictures, weathers = next(batches)
    assert pictures.shape == (40, HEIGHT // 2, WIDTH // 2, 3)
    assert set(weathers.tolist()) == {0, 1, 2, 3, 4}
