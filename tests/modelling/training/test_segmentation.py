"""Training: what a crop may and may not change, the schedule, and that a network learns what it is shown."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from modelling.evaluation.confusion import Confusion
from modelling.recipes import recipe
from modelling.training.augmentation import augmented
from modelling.training.crops import CropLoader
from modelling.training.dataset import (
    HEIGHT,
    HELD_OUT_WEATHER,
    TRAINING_WEATHERS,
    WIDTH,
    rendering,
    training_views,
    validation_views,
)
from modelling.training.frame_store import FrameStore
from modelling.training.segmentation import (
    SegmentationFrames,
    SegmentationSettings,
    TrainingError,
    TrainingStage,
    mean_iou,
    train,
    train_on,
)
from modelling.training.trainer import LearningRateSchedule, TrainingProgress
from modelling.training.weights import read_weights
from rosbag_tools.drive.scene import CLASSES, WEATHERS


@pytest.fixture
def store(tmp_path: Path) -> FrameStore:
    """Three frames of coloured blocks: the red value of a pixel is twenty times its class id."""
    filled = FrameStore.create(tmp_path / "frames", 4, 96, 128)
    for index in range(3):
        blocks = np.random.default_rng(index).integers(0, len(CLASSES), (6, 8), np.uint8)
        labels = blocks.repeat(16, axis=0).repeat(16, axis=1)
        filled.put(index, np.stack([labels * 20, 255 - labels * 20, labels * 7], axis=2), labels)
    return filled


def loader(store: FrameStore, *, halved: float, seed: int = 1) -> CropLoader:
    """Crops of 32×48."""
    value = np.ones(len(CLASSES), np.float32)
    return CropLoader(store, batch=4, height=32, width=48, value=value, halved=halved, seed=seed)


def test_no_training_frame_is_of_a_validation_drive_or_the_held_out_weather() -> None:
    """Figures on what was trained on would be worth nothing."""
    training = training_views(400)
    validation = validation_views(40, (HELD_OUT_WEATHER, *TRAINING_WEATHERS))
    assert {view.weather for view in training} == set(TRAINING_WEATHERS)
    assert HELD_OUT_WEATHER not in TRAINING_WEATHERS
    assert {view.weather for view in validation} == set(WEATHERS)
    assert not {view.seed for view in training} & {view.seed for view in validation}
    assert len(set(training)) == len(training)


@pytest.mark.parametrize("halved", [0.0, 1.0])
def test_a_crop_keeps_picture_and_labels_together(store: FrameStore, halved: float) -> None:
    """Labels a pixel beside their picture would teach blurred edges."""
    with loader(store, halved=halved) as crops:
        for _ in range(5):
            pictures, labels = next(crops)
            assert pictures.shape == (4, 32, 48, 3)
            assert pictures.dtype == np.uint8
            assert labels.shape == (4, 32, 48)
            for picture, mask in zip(pictures, labels, strict=True):
                # Light and haze may move all values, but pixels of one class stay nearer to each other than to others.
                means = [picture[mask == each].mean(axis=0) for each in np.unique(mask)]
                spread = max(picture[mask == each].std(axis=0).max() for each in np.unique(mask))
                assert len(means) == 1 or min(np.abs(a - b).max() for a, b in pairwise(means)) > 0
                assert spread < 60


def test_the_same_seed_gives_the_same_crops(store: FrameStore) -> None:
    """A training that cannot be repeated cannot be mended."""
    with loader(store, halved=0.5, seed=3) as first, loader(store, halved=0.5, seed=3) as second:
        for _ in range(3):
            for one, other in zip(next(first), next(second), strict=True):
                np.testing.assert_array_equal(one, other)


def test_what_fails_in_the_loader_s_thread_is_raised_where_batches_are_taken(store: FrameStore) -> None:
    """A training that waits for ever for a dead thread looks like a slow one."""
    store.ready[:] = 0
    with loader(store, halved=0.0) as crops, pytest.raises(ValueError, match="empty"):
        next(crops)


def test_augmentation_changes_pixels_but_never_labels() -> None:
    """Only mirroring moves anything, and it moves both."""
    labels = np.random.default_rng(0).integers(0, 12, (16, 24), np.uint8)
    picture = np.repeat((labels * 20)[..., np.newaxis], 3, axis=2)
    for seed in range(20):
        changed, moved = augmented(picture, labels, np.random.default_rng(seed))
        assert changed.shape == picture.shape
        assert np.array_equal(moved, labels) or np.array_equal(moved, labels[:, ::-1])


def test_the_rate_rises_then_falls_to_nothing() -> None:
    """Weights that end at a high rate are noisy ones."""
    schedule = LearningRateSchedule(0.01)
    rates = [schedule.rate(progress) for progress in np.linspace(0, 1, 101)]
    assert max(rates) == pytest.approx(0.01, rel=0.01)
    assert rates.index(max(rates)) == 3
    assert all(later <= earlier for earlier, later in pairwise(rates[3:]))
    assert rates[-1] == pytest.approx(0, abs=1e-9)


def test_mean_iou_leaves_out_none_and_the_classes_that_are_not_there() -> None:
    """The bonnet is easy and would lift the mean; an absent class is no zero."""
    counts = np.zeros((12, 12), np.int64)
    counts[0, 0], counts[0, 1], counts[1, 1], counts[11, 11] = 30, 10, 10, 1000
    assert mean_iou(Confusion(counts)) == pytest.approx((30 / 40 + 10 / 20) / 2)


def test_confusion_counts_rows_by_truth() -> None:
    """Swapped, precision would be read as recall."""
    truth = np.array([[0, 0, 1]], np.uint8)
    confusion = Confusion.empty(2).with_masks(truth, np.array([[0, 1, 1]], np.uint8))
    np.testing.assert_array_equal(confusion.counts, [[1, 1], [0, 1]])
    assert confusion.pixel_accuracy == pytest.approx(2 / 3)


def test_a_short_training_learns_and_leaves_its_figures(store: FrameStore, tmp_path: Path) -> None:
    """The whole of it on three frames: every kind of stage, the checkpoint, the figures."""
    stages = (
        TrainingStage(until=0.5, normalise_by_batch=True, thinned=True, halved=0.3, weighted=True, whole=False),
        TrainingStage(until=1.0, normalise_by_batch=False, thinned=False, halved=0.0, weighted=False, whole=True),
    )
    course = SegmentationSettings(
        seed=2, steps=24, crop_height=32, crop_width=48, steps_between_validations=12, stages=stages
    )
    reports: list[TrainingProgress] = []
    weights = train_on(recipe("road-small"), SegmentationFrames(store, store), tmp_path, course, reports.append)
    losses = [report.loss for report in reports]
    assert len(losses) == 24
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.2
    figures = json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert figures["best_step"] in (12, 24)
    assert set(figures["validation"]["iou"]) == set(CLASSES)
    kept = read_weights(tmp_path / "checkpoint.npz")
    assert kept.keys() == weights.keys()


def test_a_model_of_other_pictures_than_the_drive_s_is_refused(tmp_path: Path) -> None:
    """An hour of rendering before a shape error would be a poor answer."""
    with pytest.raises(TrainingError, match="street-lite"):
        train(recipe("street-lite"), tmp_path, SegmentationSettings(), print)


def test_rendered_frames_have_the_size_and_classes_of_what_the_model_will_see(tmp_path: Path) -> None:
    """Training on other pictures than a vehicle sends would show only on the road."""
    views = validation_views(2, ("dusk",))
    with rendering(views, tmp_path / "frames", processes=1) as made:
        made.wait(2)
    assert made.store.pictures.shape == (2, HEIGHT, WIDTH, 3)
    assert list(made.store.ready_indices()) == [0, 1]
    assert {0, 5} <= set(np.unique(made.store.labels[0]))
    assert made.store.pictures[0].std() > 5
