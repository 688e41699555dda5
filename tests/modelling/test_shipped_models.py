"""The built-in models, on scenes of drives that they were not trained on."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloud.models.loader import ModelLoader
from modelling.building import build
from modelling.evaluation.bag_images import truth_of
from modelling.recipes import recipe
from rosbag_tools.drive.drive_views import DriveView, generator, rendered_view
from rosbag_tools.drive.scene import PRESENCE, WEATHERS
from shared.imaging.labels import read_labels
from shared.inference.model import open_local
from shared.models.manifest import Placement
from shared.models.repository import Repository, default_root
from training.dataset import HEIGHT, WIDTH
from training.scene_batches import small

SEED = 970_001  # Not used for training or validation.


@pytest.mark.parametrize("name", ["road-weather", "road-objects"])
def test_a_built_in_model_is_small_and_accepts_batches(name: str) -> None:
    """The files are part of the source distribution, and a worker batches the frames of several vehicles."""
    repository = Repository(default_root())
    assert repository.find(name).file().stat().st_size < 6_000_000
    manifest = repository.find(name).manifest
    assert tuple(label.name for label in manifest.labels) == recipe(name).class_names
    assert (manifest.trained, manifest.batching.max_size) == (True, 8)


def test_the_classifier_recognises_each_weather() -> None:
    """It classified 199 of 200 validation frames correctly; these five are easy."""
    weather_recipe = recipe("road-weather")
    size = (weather_recipe.height, weather_recipe.width)
    views = [DriveView(SEED, weather, 3.0) for weather in WEATHERS]
    images = np.stack([rendered_view(view, *size, generator(view))[1] for view in views])
    with ModelLoader(Repository(default_root()), Placement(device="cpu")).open("road-weather") as model:
        scores = model.infer(images)["scores"]
    assert scores.argmax(axis=1).tolist() == list(range(len(WEATHERS)))
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)


def test_the_detectors_best_box_is_on_an_object() -> None:
    """The distance of the centres is below half the size of the true box."""
    view = DriveView(SEED, "overcast", 3.0)
    frame, image = rendered_view(view, HEIGHT, WIDTH, generator(view))
    with ModelLoader(Repository(default_root()), Placement(device="cpu")).open("road-objects") as model:
        outputs = model.infer(image[np.newaxis])
    boxes, scores = outputs["boxes"][0], outputs["scores"][0]
    assert boxes.shape == (76 * 121, 4)
    assert scores.shape == (76 * 121, 2)
    left, top, right, bottom = boxes[scores.max(axis=1).argmax()] * (frame.rgb.shape[1] / WIDTH)
    x, y = (left + right) / 2, (top + bottom) / 2
    assert any(
        abs(box.x + box.width / 2 - x) < box.width / 2 and abs(box.y + box.height / 2 - y) < box.height / 2
        for box in frame.boxes
    )


def test_the_local_segmentation_is_small_and_has_a_training_record() -> None:
    """It fits a vehicle, gives the labels of its reference, and its record has figures for every weather."""
    repository = Repository(default_root())
    stored = repository.find("road-tiny")
    assert stored.file().stat().st_size < 1_000_000
    assert stored.card().labels == repository.find("road-small").card().labels
    record = json.loads((stored.folder / "training.json").read_text(encoding="utf-8"))
    for name in ("road-tiny", "road-small"):
        assert set(record["test"]["models"][name]) == {*WEATHERS, "all"}
    assert record["donor"] == "road-small"


def test_the_local_segmentation_agrees_with_the_truth_and_is_surer_where_it_is_right() -> None:
    """The scene's weather is held out of the training; the scores must belong to the mask's pixels."""
    stored = Repository(default_root()).find("road-tiny")
    view = DriveView(SEED, "overcast", 3.0)
    frame, image = rendered_view(view, HEIGHT, WIDTH, generator(view))
    with open_local(replace(stored, manifest=stored.manifest.with_confidence_head()), Placement(device="cpu")) as model:
        outputs = model.infer(image[np.newaxis])
    step = len(frame.class_ids) // HEIGHT
    right = outputs["mask"][0] == frame.class_ids[step // 2 :: step, step // 2 :: step]
    assert right.mean() > 0.85
    scores = outputs["confidence"][0]
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    highest = powers.max(axis=-1) / powers.sum(axis=-1)
    rows, columns = (
        (np.arange(n) * 8 + 3).clip(max=limit - 1) for n, limit in zip(scores.shape, (HEIGHT, WIDTH), strict=False)
    )
    sampled = right[np.ix_(rows, columns)]
    assert (outputs["mask"][0][np.ix_(rows, columns)] == scores.argmax(axis=-1)).mean() > 0.97
    assert highest[sampled].mean() > highest[~sampled].mean() + 0.1


@pytest.mark.parametrize("name", ["car-tiny", "car-reference"])
def test_the_answer_of_a_fixed_camera_follows_the_traffic(name: str, tmp_path: Path) -> None:
    """Vehicles pass close to the camera at 0 and 6 s. The reference is built from shipped weights, not shipped itself."""
    labels = read_labels(Path(__file__).parents[2] / "configs/labels/street12.yaml")
    build(recipe(name), tmp_path, labels, source=default_root())
    views = [DriveView(970_002, "clear", time_s, static_camera=True) for time_s in (0.0, 4.0, 6.0, 12.0, 20.0)]
    scenes = [rendered_view(view, HEIGHT, WIDTH, generator(view)) for view in views]
    with ModelLoader(Repository(tmp_path), Placement(device="cpu")).open(name) as model:
        assert model.card.labels.names == PRESENCE
        images = [small(image, model.card.height, model.card.width) for _, image in scenes]
        answers = [int(model.infer(image[np.newaxis])["scores"].argmax()) for image in images]
    assert answers == [truth_of(frame.boxes, len(frame.rgb)) for frame, _ in scenes] == [1, 0, 1, 0, 0]


def test_car_tiny_is_small_and_judged_beside_its_reference() -> None:
    """The file is read by a vehicle; its record has the figures of both models on the same unseen cameras."""
    folder = default_root() / "car-tiny"
    assert (folder / "model.tflite").stat().st_size < 200_000
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    tiny, reference = record["validation"], record["validation of car-reference"]
    assert set(tiny["by_weather"]) == set(reference["by_weather"]) == set(WEATHERS)
    assert min(figures["all"]["accuracy"] for figures in (tiny, reference)) > 0.9
    assert tiny["all"]["frames"] == reference["all"]["frames"] == record["validation_frames"]
