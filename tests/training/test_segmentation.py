"""Crops, augmentation, schedule and a short training of a segmentation network."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from modelling.evaluation.metrics import Confusion
from modelling.recipes import recipe
from rosbag_tools.drive.drive_views import (
    HELD_OUT_WEATHER,
    TRAINING_WEATHERS,
    training_views,
    unseen_views,
    validation_views,
)
from rosbag_tools.drive.scene import CLASSES, WEATHERS
from shared.inference.model import open_local
from shared.models.manifest import Placement
from shared.models.repository import Repository, default_root
from training.crops import CropLoader, augmented
from training.dataset import SIZES, FrameStore, render_frames
from training.recipe_training import unfolded_weights
from training.segmentation import (
    SegmentationSettings,
    TrainingError,
    TrainingStage,
    default_settings,
    scores_by_weather,
    train,
    train_on,
)
from training.trainer import LearningRateSchedule, TrainingProgress


@pytest.fixture
def store(tmp_path: Path) -> FrameStore:
    """A store with three frames of coloured blocks; the red value of a pixel is twenty times its class id."""
    arrays = {"pictures": (np.uint8, (3, 96, 128, 3)), "labels": (np.uint8, (3, 96, 128))}
    store = FrameStore.create(tmp_path / "frames", **arrays)
    for index in range(3):
        blocks = np.random.default_rng(index).integers(0, len(CLASSES), (6, 8), np.uint8)
        labels = blocks.repeat(16, axis=0).repeat(16, axis=1)
        store.pictures[index] = np.stack([labels * 20, 255 - labels * 20, labels * 7], axis=2)
        store.labels[index] = labels
    return store


def loader(store: FrameStore, *, halved: float, seed: int = 1) -> CropLoader:
    """Returns a loader of crops of 32×48."""
    value = np.ones(len(CLASSES), np.float32)
    return CropLoader(store, batch=4, height=32, width=48, value=value, halved=halved, seed=seed)


def test_training_frames_are_not_from_validation_drives_or_the_held_out_weather() -> None:
    """Results on training data would be meaningless."""
    training = training_views(400)
    validation = validation_views(40, (HELD_OUT_WEATHER, *TRAINING_WEATHERS))
    assert {view.weather for view in training} == set(TRAINING_WEATHERS)
    assert HELD_OUT_WEATHER not in TRAINING_WEATHERS
    assert {view.weather for view in validation} == set(WEATHERS)
    assert not {view.seed for view in training} & {view.seed for view in validation}
    assert len(set(training)) == len(training)


@pytest.mark.parametrize("halved", [0.0, 1.0])
def test_a_crops_image_and_labels_are_aligned(store: FrameStore, halved: float) -> None:
    """An offset of one pixel would train blurred edges."""
    with loader(store, halved=halved) as crops:
        for _ in range(5):
            images, labels = next(crops)
            assert images.shape == (4, 32, 48, 3)
            assert images.dtype == np.uint8
            assert labels.shape == (4, 32, 48)
            for image, mask in zip(images, labels, strict=True):
                # Augmentation changes all values, but those of one class remain similar.
                means = [image[mask == each].mean(axis=0) for each in np.unique(mask)]
                spread = max(image[mask == each].std(axis=0).max() for each in np.unique(mask))
                assert len(means) == 1 or min(np.abs(a - b).max() for a, b in pairwise(means)) > 0
                assert spread < 60


def test_the_same_seed_gives_the_same_crops(store: FrameStore) -> None:
    """Trainings must be reproducible."""
    with loader(store, halved=0.5, seed=3) as first, loader(store, halved=0.5, seed=3) as second:
        for _ in range(3):
            for one, other in zip(next(first), next(second), strict=True):
                np.testing.assert_array_equal(one, other)


def test_an_error_in_the_loaders_thread_is_raised_by_next(store: FrameStore) -> None:
    """Otherwise, the training would wait indefinitely."""
    empty = FrameStore(store.pictures[:0], store.labels[:0])
    with loader(empty, halved=0.0) as crops, pytest.raises(ValueError, match="positive"):
        next(crops)


def test_augmentation_only_mirrors_labels() -> None:
    """All other effects change pixel values only."""
    labels = np.random.default_rng(0).integers(0, 12, (16, 24), np.uint8)
    image = np.repeat((labels * 20)[..., np.newaxis], 3, axis=2)
    for seed in range(20):
        changed, mirrored = augmented(image, labels, np.random.default_rng(seed))
        assert changed.shape == image.shape
        assert np.array_equal(mirrored, labels) or np.array_equal(mirrored, labels[:, ::-1])


def test_the_learning_rate_rises_to_its_peak_and_falls_to_zero() -> None:
    """The peak is at the end of the warm-up, at 3 %."""
    schedule = LearningRateSchedule(0.01)
    rates = [schedule.rate(done) for done in np.linspace(0, 1, 101)]
    assert max(rates) == pytest.approx(0.01, rel=0.01)
    assert rates.index(max(rates)) == 3
    assert all(later <= earlier for earlier, later in pairwise(rates[3:]))
    assert rates[-1] == pytest.approx(0, abs=1e-9)


def test_mean_iou_omits_none_and_absent_classes() -> None:
    """`none` is easy and would increase the mean; an absent class has no IoU."""
    counts = np.zeros((12, 12), np.int64)
    counts[0, 0], counts[0, 1], counts[1, 1], counts[11, 11] = 30, 10, 10, 1000
    assert Confusion(counts).mean_iou(CLASSES) == pytest.approx((30 / 40 + 10 / 20) / 2)


def test_the_confusion_matrix_has_the_truth_in_its_rows() -> None:
    """If rows and columns were swapped, precision and recall would be too."""
    truth = np.array([[0, 0, 1]], np.uint8)
    confusion = Confusion.empty(2).with_masks(truth, np.array([[0, 1, 1]], np.uint8))
    np.testing.assert_array_equal(confusion.counts, [[1, 1], [0, 1]])
    assert confusion.pixel_accuracy == pytest.approx(2 / 3)


def test_a_short_training_reduces_the_loss_and_writes_its_results(store: FrameStore, tmp_path: Path) -> None:
    """A complete training on three frames: both kinds of stages, the checkpoint, and training.json."""
    stages = (
        TrainingStage(until=0.5, normalise_by_batch=True, thinned=True, halved=0.3, weighted=True, whole=False),
        TrainingStage(until=1.0, normalise_by_batch=False, thinned=False, halved=0.0, weighted=False, whole=True),
    )
    settings = SegmentationSettings(
        seed=2, steps=12, crop_height=32, crop_width=48, steps_between_validations=6, stages=stages
    )
    progress: list[TrainingProgress] = []
    weights = train_on(recipe("road-small"), tmp_path, settings, progress.append, training=store, validation=store)
    losses = [each.loss for each in progress]
    assert len(losses) == 12
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.2
    assert (progress[0].mean_iou, progress[-1].mean_iou is None) == (None, False)
    document = json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert document["best_step"] in (6, 12)
    assert set(document["validation"]["iou"]) == set(CLASSES)
    assert set(np.load(tmp_path / "checkpoint.npz").files) == weights.keys()


def test_a_recipe_with_another_input_size_is_refused(tmp_path: Path) -> None:
    """The error comes before an hour of rendering."""
    with pytest.raises(TrainingError, match="street-lite"):
        train(recipe("street-lite"), tmp_path, SegmentationSettings(), print)


def test_a_small_network_starts_from_the_donors_weights(store: FrameStore, tmp_path: Path) -> None:
    """The layers of equal name and shape take them; a learning rate of 0 keeps them unchanged."""
    tiny = recipe("road-tiny")
    settings = replace(default_settings(tiny), steps=2, peak_rate=0.0, crop_height=32, crop_width=48)
    assert settings.donor == "road-small"
    donor = unfolded_weights("road-small", default_root())
    weights = train_on(tiny, tmp_path, settings, lambda _: None, training=store, validation=store, donor=donor)
    assert sum(name in donor and np.array_equal(values, donor[name]) for name, values in weights.items()) > 150
    for name in ("stem.conv.kernel", "block8.narrow.conv.kernel", "head.refine8.conv.kernel"):
        np.testing.assert_array_equal(weights[name], donor[name])
    assert json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))["donor"] == "road-small"


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_rendered_frames_have_the_models_size_and_classes(tmp_path: Path, height: int, width: int) -> None:
    """They are preprocessed as on a vehicle."""
    views = validation_views(2, ("dusk",))
    store = render_frames(views, tmp_path / "frames", processes=1, height=height, width=width)
    assert store.pictures.shape == (2, height, width, 3)
    assert store.labels.shape == (2, height, width)
    assert {0, 5} <= set(np.unique(store.labels[0]))
    assert min(picture.std() for picture in store.pictures) > 5


def test_models_are_scored_by_weather_on_drives_of_their_own() -> None:
    """The figures of training.json: both models on the same images, at the camera's size, each weather by itself."""
    views = [view for view in unseen_views(20) if view.time_s < 7]
    others = {view.seed for view in (*training_views(1400), *validation_views(40, WEATHERS))}
    assert not others & {view.seed for view in views}
    repository = Repository(default_root())
    with open_local(repository.find("road-tiny"), Placement(device="cpu")) as model:
        scores = scores_by_weather([model], views)
    assert scores["frames"] == dict.fromkeys(WEATHERS, 1)
    assert (scores["height"], scores["width"]) == (1216, 1936)
    by_weather = scores["models"]["road-tiny"]
    assert set(by_weather) == {*WEATHERS, "all"}
    assert all(figures["pixel_accuracy"] > 0.8 for figures in by_weather.values())
    assert set(by_weather["all"]["iou"]) == set(CLASSES)
